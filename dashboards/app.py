"""The Dash app of one report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go
from dash import ClientsideFunction, Dash, Input, Output
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from ddpdoctor import __version__
from ddpdoctor.analysis.headline import headline
from ddpdoctor.analysis.timeline import Timeline
from ddpdoctor.dashboards.figures import excess_map, rank_bars, step_areas
from ddpdoctor.dashboards.pages.frame import document, frame, not_found
from ddpdoctor.dashboards.pages.overview import overview
from ddpdoctor.dashboards.pages.timeline import timeline_page
from ddpdoctor.dashboards.routes import data_routes
from ddpdoctor.dashboards.safety import add_headers, guard
from ddpdoctor.dashboards.shown import Shown
from ddpdoctor.report import Report


def create_app(
    report: Report,
    *,
    token: str | None,
    allowed_hosts: Iterable[str] = (),
    prefix: str = "/",
    timeline: Timeline | None = None,
) -> Dash:
    """`token=None` lets everyone in who reaches the port; only for a server on 127.0.0.1.

    `allowed_hosts` are host names trusted beside those of the local machine, `prefix` is the path
    under which a proxy shows the app, stripped before it reaches the app. `timeline` is that of the
    report's run, where it was built already.
    """
    shown = Shown(report, timeline)
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
    shown.prepare()
    guard(app.server, token, allowed_hosts)
    app.server.register_blueprint(data_routes(shown), url_prefix="/data")
    app.index_string = document(app.get_asset_url)
    app.layout = frame(report, shown.facts, app.get_relative_path)
    _callbacks(app, shown)
    add_headers(app.server, [f"'{each.strip(chr(39))}'" for each in app.csp_hashes()])
    return app


def _callbacks(app: Dash, shown: Shown) -> None:
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
                return timeline_page(shown.timeline, shown.findings, shown.split, relative)
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
