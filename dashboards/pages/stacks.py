"""Where the training threads were seen, and where ranks stood at the end."""

from __future__ import annotations

from dash.development.base_component import Component

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.dashboards.pages.frame import Relative
from ddpdoctor.dashboards.pages.sheet import page, sheet_panel
from ddpdoctor.sheets import last_sheet, lines_sheet


def stacks_page(analysis: Analysis, relative: Relative) -> Component:
    return page(
        "Stacks",
        sheet_panel(last_sheet(analysis), "standing", relative, "innermost line first"),
        sheet_panel(
            lines_sheet(analysis), "lines", relative,
            "samples of the whole run: they have no time of their own",
        ),
    )  # fmt: skip
