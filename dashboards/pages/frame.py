"""What every page shares: header, pages, theme button, and the document around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dash import dcc, html
from dash.development.base_component import Component

from ddpdoctor.dashboards.palette import DARK, LIGHT, Palette
from ddpdoctor.events import Phase
from ddpdoctor.report import Report

PAGES: Final = (
    ("/", "Overview"), ("/timeline", "Timeline"), ("/ranks", "Ranks"), ("/buckets", "Buckets"),
    ("/data-loading", "Data"), ("/stacks", "Stacks"), ("/checks", "Checks"),
)  # fmt: skip
Relative = Callable[[str], str]  # a path of this app, under its prefix
DECORATION: Final[dict[str, Any]] = {"aria-hidden": "true"}


def named(label: str, **others: str) -> dict[str, Any]:
    """Attributes with a hyphen, which are no Python names; `data_source` becomes data-source."""
    return {"aria-label": label, **attributes(**others)}


def attributes(**texts: str) -> dict[str, Any]:
    return {name.replace("_", "-"): text for name, text in texts.items()}


def frame(report: Report, facts: str, relative: Relative, all_runs: str | None = None) -> Component:
    """The app's layout; the page goes into `page` by the address."""
    runs = [html.A("All runs", href=all_runs, className="nav")] if all_runs else []
    return html.Div(
        [
            dcc.Location(id="address"),
            dcc.Store(id="theme", data=None),
            dcc.Store(id="version", data=0),
            html.A("Skip to the page", href="#page", className="skip"),
            html.Header(
                [
                    html.A(
                        [html.Span("ddp", className="brand-accent"), "doctor"],
                        href=relative("/"),
                        className="brand",
                    ),
                    html.Nav(
                        [
                            html.A(name, href=relative(path), id=_nav_id(name), className="nav")
                            for path, name in PAGES
                        ]
                        + runs,
                        **named("Pages"),
                    ),
                    html.Span(
                        id="course", role="status", **attributes(data_source=relative("/data/live"))
                    ),
                    html.Span([html.B(report.name), f" {facts}"], className="run-facts"),
                    html.Button(
                        "Theme",
                        id="theme-button",
                        className="button",
                        type="button",
                        title="Switch between light and dark",
                    ),
                ],
                className="top",
            ),
            html.Main(id="page"),
        ]
    )


def _nav_id(name: str) -> str:
    return f"nav-{name.lower()}"


def not_found(relative: Relative) -> Component:
    return html.Div(
        [
            html.H1("There is no such page"),
            html.P([html.A("Go to the overview", href=relative("/"))]),
        ],
        className="message",
    )


def document(asset: Relative) -> str:
    """The HTML around the app. The theme is set before anything is painted."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
{{%metas%}}
<title>{{%title%}}</title>
<style>{swatches()}</style>
<link rel="icon" href="{asset("icon.svg")}">
<script src="{asset("theme.js")}"></script>
<script src="{asset("live.js")}" defer></script>
{{%css%}}
</head>
<body>
{{%app_entry%}}
<footer>{{%config%}}{{%scripts%}}{{%renderer%}}
<script type="module" src="{asset("timeline/main.js")}"></script>
</footer>
</body>
</html>"""


def swatches() -> str:
    """The legend's colours in both themes."""
    return _swatches(LIGHT, "") + _swatches(DARK, ':root[data-theme="dark"] ')


def _swatches(palette: Palette, theme: str) -> str:
    """The legend's colours, from the same place as the canvas's."""
    rules = [
        f"{theme}.phase-{phase.label}{{background:{colour}}}"
        for phase, colour in palette.phases.items()
    ]
    wait = palette.phases[Phase.WAIT]
    stripes = f"repeating-linear-gradient(135deg,{wait} 0 1.5px,{palette.ground} 1.5px 4px)"
    rules.append(
        f"{theme}.phase-wait{{background:{stripes};outline:1px solid {wait};outline-offset:-1px}}"
    )
    return "".join(rules)
