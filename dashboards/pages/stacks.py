"""Where the training threads were seen, and where ranks stood at the end."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.dashboards.pages.frame import Relative, named
from ddpdoctor.dashboards.pages.sheet import page, sheet_panel
from ddpdoctor.sheets import last_sheets, lines_sheet


def stacks_page(analysis: Analysis, culprits: frozenset[int], relative: Relative) -> Component:
    moments = last_sheets(analysis)
    standing = [
        html.Div(
            sheet_panel(sheet, "standing", relative, _note(moment), culprits), id=_id_of(moment)
        )
        for moment, sheet in moments
    ]
    return page(
        "Stacks",
        *([_chooser([moment for moment, _ in moments])] if len(moments) > 1 else []),
        *standing,
        sheet_panel(
            lines_sheet(analysis), "lines", relative,
            "samples of the whole run: they have no time of their own",
        ),
    )  # fmt: skip


def _chooser(moments: list[str]) -> Component:
    """Leads to the stacks of one moment."""
    links = [html.A(moment, href=f"#{_id_of(moment)}", className="button") for moment in moments]
    return html.Nav(
        [html.Span("Moments", className="dim"), *links],
        className="chooser",
        **named("Moments"),
    )


def _id_of(moment: str) -> str:
    return "standing" + "".join(c if c.isalnum() else "-" for c in f"-{moment}".lower())


def _note(moment: str) -> str:
    return f"{moment}; innermost line first" if moment else "innermost line first"
