"""The timeline: a canvas that scripts draw, with its legend, side panel and help."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from ddpdoctor.dashboards.figures import shown_phases
from ddpdoctor.dashboards.links import PlacedFinding
from ddpdoctor.dashboards.pages.frame import DECORATION, Relative, named

KEYS = (
    ("← →", "move in time"),
    ("↑ ↓", "scroll the ranks"),
    ("+ −", "zoom in, zoom out"),
    ("e q", "taller, lower rows"),
    ("0", "the whole run"),
    ("n p", "next, previous finding"),
    (", .", "previous, next span of the rank"),
    ("f", "fit the selected span"),
    ("Esc", "clear the selection"),
    ("?", "show or hide this help"),
)


def timeline_page(findings: list[PlacedFinding], split: bool, relative: Relative) -> Component:
    return html.Div(
        [_head(split), _stage(relative("/data/")), _side(findings, relative)],
        className="timeline-page",
    )


def _head(split: bool) -> Component:
    return html.Div(
        [
            html.H1("Timeline", className="unseen"),
            _legend(split),
            html.Div(
                [
                    html.Label(
                        [
                            html.Span("Go to step or rank", className="unseen"),
                            dcc.Input(id="go-to", type="text", placeholder="step 20 rank 3"),
                        ]
                    ),
                    _button("zoom-in", "+", "Zoom in"),
                    _button("zoom-out", "−", "Zoom out"),
                    _button("whole-run", "Whole run", "Show the whole run"),
                    _button("help", "?", "Keys and mouse"),
                ],
                className="tools",
            ),
        ],
        className="timeline-head",
    )


def _stage(source: str) -> Component:
    """What the scripts draw on; `source` is where they fetch the run."""
    says = "Timeline of all ranks. Press ? for the keys; the selected span is read out."
    return html.Div(
        [
            html.Canvas(id="minimap", **DECORATION),
            html.Canvas(
                id="timeline", tabIndex=0, role="application", **named(says, data_source=source)
            ),
            html.Div(id="tooltip", hidden=True),
            html.Div("Loading the run …", id="timeline-state", role="status"),
        ],
        className="timeline-stage",
    )


def _side(findings: list[PlacedFinding], relative: Relative) -> Component:
    links = [_finding(placed, relative) for placed in findings]
    return html.Aside(
        [
            html.H2("Selection"),
            html.Div(
                "Click a span or a collective.",
                id="selection",
                **named("Selected span", aria_live="polite"),
            ),
            html.H2("Findings"),
            html.Nav(
                links or [html.P("Nothing was found in this run.", className="dim")],
                id="finding-links",
                **named("Findings"),
            ),
            html.Div(_help(), id="help-panel"),
        ],
        className="timeline-side",
        **named("Selection and findings"),
    )


def _legend(split: bool) -> Component:
    return html.Ul(
        [
            html.Li(
                [
                    html.Span(className=f"swatch phase-{phase.label}", **DECORATION),
                    phase.label,
                ]
            )
            for phase in shown_phases(split)
        ],
        className="legend",
        **named("Colours"),
    )


def _button(name: str, text: str, title: str) -> Component:
    return html.Button(
        text, id=name, type="button", className="button", title=title, **named(title)
    )


def _finding(placed: PlacedFinding, relative: Relative) -> Component:
    lost = placed.finding.lost_s
    content = [
        html.Span(className=f"dot {placed.finding.severity.label}", **DECORATION),
        html.Span(placed.finding.message, className="finding-link-text"),
        html.Span("" if lost is None else f"{lost:.1f} s", className="finding-link-lost"),
    ]
    if placed.query is None:
        return html.Div(content, className="finding-link", title="This has no place in time.")
    return html.A(
        content,
        href=f"{relative('/timeline')}?{placed.query}",
        className="finding-link",
        **named(placed.finding.message, data_finding=placed.id),
    )


def _help() -> list[Component]:
    rows = [html.Div([html.Dt(html.Kbd(keys)), html.Dd(text)]) for keys, text in KEYS]
    return [
        html.H2("Keys"),
        html.Dl(rows, className="keys"),
        html.P(
            "Upper half of a rank: its training thread. Lower half: its collectives, pale while "
            "they wait for the last rank, full while bytes move. Wheel zooms at the pointer, drag "
            "moves, shift and wheel moves in time, wheel over the rank names scrolls. In the strip "
            "above, drag to choose a stretch.",
            className="dim",
        ),
    ]
