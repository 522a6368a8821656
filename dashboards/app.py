"""The Dash app of one report."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import plotly.graph_objects as go
from dash import ClientsideFunction, Dash, Input, Output
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from ddpdoctor import __version__
from ddpdoctor.analysis.grid import StepMap, StepSeries, pooled, step_series
from ddpdoctor.analysis.headline import headline
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.timeline import Timeline, build_timeline
from ddpdoctor.dashboards.figures import excess_map, rank_bars, step_areas
from ddpdoctor.dashboards.links import PlacedFinding, placed_findings
from ddpdoctor.dashboards.pages.frame import document, frame, not_found
from ddpdoctor.dashboards.pages.overview import overview
from ddpdoctor.dashboards.pages.timeline import timeline_page
from ddpdoctor.dashboards.routes import data_routes
from ddpdoctor.dashboards.safety import add_headers, guard
from ddpdoctor.errors import NotARun
from ddpdoctor.report import Report

MAP_COLUMNS = 400  # of the heat map: about as many as it has pixels for
CELL_COLUMNS = 2000  # of the timeline zoomed out


def create_app(
    report: Report,
    *,
    token: str | None,
    allowed_hosts: Iterable[str] = (),
    prefix: str = "/",
) -> Dash:
    """`token=None` lets everyone in who reaches the port; only for a server on 127.0.0.1.

    `allowed_hosts` are host names trusted beside those of the local machine, `prefix` is the path
    under which a proxy shows the app, stripped before it reaches the app.
    """
    shown = _Shown(report)
    app = Dash(
        __name__,
        title=f"{report.name} · ddpdoctor {__version__}",
        update_title="",
        serve_locally=True,
        assets_folder="assets",
        assets_ignore=r".*\.js$",  # the document names its scripts itself
        requests_pathname_prefix=prefix,
        routes_pathname_prefix="/",
        suppress_callback_exceptions=True,
    )
    guard(app.server, token, allowed_hosts)
    app.server.register_blueprint(
        data_routes(
            shown.timeline, shown.series, pooled(shown.timeline.grid, CELL_COLUMNS), shown.findings
        ),
        url_prefix="/data",
    )
    app.index_string = document(app.get_asset_url)
    app.layout = frame(report, shown.facts, app.get_relative_path)
    _callbacks(app, shown)
    add_headers(app.server, [f"'{each.strip(chr(39))}'" for each in app.csp_hashes()])
    return app


class _Shown:
    """What the pages show, made once."""

    def __init__(self, report: Report) -> None:
        if report.analysis is None:
            raise NotARun(f"{report.name}: the dashboard shows recorded runs, and this is none")
        self.report = report
        self.analysis: Analysis = report.analysis
        self.timeline: Timeline = build_timeline(report.analysis)
        self.findings: list[PlacedFinding] = placed_findings(report, self.timeline.grid)

    @cached_property
    def series(self) -> StepSeries:
        return step_series(self.timeline.grid)

    @cached_property
    def map(self) -> StepMap:
        return pooled(self.timeline.grid, MAP_COLUMNS)

    @property
    def split(self) -> bool:
        return self.analysis.tables.clock.comparable

    @property
    def facts(self) -> str:
        info = self.analysis.run.info
        return f"attempt {info.attempt} · {info.world_size} ranks · {info.backend}"


def _callbacks(app: Dash, shown: _Shown) -> None:
    relative = app.get_relative_path

    @app.callback(Output("page", "children"), Input("address", "pathname"))
    def page(path: str | None) -> Component:
        match app.strip_relative_path(path or "/"):
            case "" | None:
                return overview(
                    shown.report,
                    headline(shown.analysis),
                    shown.analysis.steps,
                    shown.findings,
                    relative,
                )
            case "timeline":
                return timeline_page(shown.findings, shown.split, relative)
            case _:
                return not_found(relative)

    @app.callback(Output("rank-bars", "figure"), Input("theme", "data"))
    def bars(theme: str | None) -> go.Figure:
        return rank_bars(shown.analysis.ranks, _known(theme))

    @app.callback(Output("excess-map", "figure"), Input("theme", "data"))
    def heat(theme: str | None) -> go.Figure:
        return excess_map(shown.map, _known(theme))

    @app.callback(Output("step-areas", "figure"), Input("theme", "data"))
    def areas(theme: str | None) -> go.Figure:
        return step_areas(shown.series, _known(theme))

    _clientside(app, "theme", Output("theme", "data"), Input("theme-button", "n_clicks"))
    _clientside(app, "openCell", Output("address", "href"), Input("excess-map", "clickData"))


def _known(theme: str | None) -> str:
    """The browser says which theme is on; until then there is nothing to draw."""
    if theme is None:
        raise PreventUpdate
    return theme


def _clientside(app: Dash, name: str, *dependencies: Any) -> None:
    """By name, not as inline script, so that the content policy need not allow any."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ddpdoctor", name), *dependencies
    )
