"""The timeline: a canvas that scripts draw, with its legend, side panel and help."""

from __future__ import annotations

from dash import dcc, html
from dash.development.base_component import Component

from ddpdoctor.analysis.timeline import Timeline
from ddpdoctor.dashboards.figures import shown_phases
from ddpdoctor.dashboards.links import PlacedFinding
from ddpdoctor.dashboards.pages.frame import DECORATION, Relative, named

CLOCKS = "How far times of different ranks can be compared: hosts' clocks are measured to rank 0."
KEYS = (
    ("W S", "zoom in, out at the pointer"),
    ("A D", "move in time; ← → too"),
    ("↑ ↓", "scroll the ranks"),
    ("E Q", "taller, lower rows"),
    ("0", "the whole run"),
    ("[ ]", "previous, next finding"),
    (", .", "previous, next span of the rank"),
    ("F", "fit the selected span"),
    ("M", "mark the moment at the pointer"),
    ("/", "search"),
    ("T", "the view as a table"),
    ("Esc", "clear the selection"),
    ("?", "show or hide this help"),
)
FINDS = "step 20, rank 3, host node1, bucket 2, a parameter's name"


def timeline_page(
    timeline: Timeline, findings: list[PlacedFinding], split: bool, relative: Relative
) -> Component:
    return html.Div(
        [_head(timeline, split), _stage(relative("/data/")), _side(findings, relative)],
        className="timeline-page",
    )


def _head(timeline: Timeline, split: bool) -> Component:
    return html.Div(
        [
            html.H1("Timeline", className="unseen"),
            _legend(split),
            html.Span(_clocks(timeline), className="pill", title=CLOCKS),
            html.Div(
                [
                    _search(),
                    _export(),
                    _button("table", "Table", "Show the view as a table"),
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


def _search() -> Component:
    box = dcc.Input(
        id="go-to", type="text", placeholder="step 20 rank 3", list="go-to-known",
        autoComplete="off",
    )  # fmt: skip
    return html.Div(
        [
            html.Label([html.Span("Go to", className="unseen"), box], title=f"Go to: {FINDS}"),
            html.Datalist(id="go-to-known"),
            html.Div(id="go-to-says", hidden=True, role="status"),
        ],
        className="go-to",
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
            html.Div(
                id="twin", hidden=True, tabIndex=0, role="region", **named("The view as a table")
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
            html.P(id="verdict", className="bad strong", hidden=True, role="alert"),
            html.H2("Selection"),
            html.Div(
                "Click a span or a collective. Shift and drag measures.",
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


def _clocks(timeline: Timeline) -> str:
    """How far times of different ranks can be compared."""
    error_ms = timeline.clock_error_ms
    if error_ms is None:
        return "clocks cannot be compared"
    return "one clock" if error_ms == 0 else f"clocks ± {error_ms:.2g} ms"


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


def _export() -> Component:
    """The view as a file; scripts fill in the addresses when it opens."""
    kinds = (
        ("png", "Picture (PNG)"), ("html", "Page that opens offline (HTML)"),
        ("csv", "Table of the view (CSV)"), ("trace", "Trace for Perfetto or Chrome"),
    )  # fmt: skip
    items = [html.A(text, href="#", download="", **named(text, data_kind=k)) for k, text in kinds]
    return html.Details([html.Summary("Export", className="button"), html.Div(items)], id="export")


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
        html.Span([html.B("Fix. "), placed.finding.fix], className="finding-link-fix"),
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
            "moves, shift and drag measures, shift and wheel moves in time, alt and wheel scrolls "
            "the ranks; over the rank names the wheel makes rows taller. In the strip above, drag "
            "to choose a stretch.",
            className="dim",
        ),
    ]
