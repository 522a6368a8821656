"""The Dash app of one report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import plotly.graph_objects as go
from dash import ClientsideFunction, Dash, Input, Output
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from ddpdoctor import __version__
from ddpdoctor.analysis.headline import headline
from ddpdoctor.analysis.standings import phase_excesses
from ddpdoctor.analysis.timeline import Timeline
from ddpdoctor.dashboards.exports import export_routes
from ddpdoctor.dashboards.figures import (
    bucket_bars,
    excess_bars,
    excess_map,
    input_map,
    rank_bars,
    step_areas,
)
from ddpdoctor.dashboards.live import start_following
from ddpdoctor.dashboards.pages.buckets import buckets_page
from ddpdoctor.dashboards.pages.checks import checks_page
from ddpdoctor.dashboards.pages.data import data_page
from ddpdoctor.dashboards.pages.frame import Relative, document, frame, not_found
from ddpdoctor.dashboards.pages.overview import overview
from ddpdoctor.dashboards.pages.ranks import ranks_page
from ddpdoctor.dashboards.pages.stacks import stacks_page
from ddpdoctor.dashboards.pages.timeline import timeline_page
from ddpdoctor.dashboards.routes import data_routes
from ddpdoctor.dashboards.safety import add_headers, guard
from ddpdoctor.dashboards.shown import Current, Shown
from ddpdoctor.following import Follower
from ddpdoctor.report import Report


def create_app(  # noqa: PLR0913  keywords
    report: Report,
    *,
    token: str | None,
    allowed_hosts: Iterable[str] = (),
    prefix: str = "/",
    timeline: Timeline | None = None,
    follow: bool = False,
    all_runs: str | None = None,
) -> Dash:
    """`token=None` lets everyone in who reaches the port; only for a server on 127.0.0.1.

    `allowed_hosts` are host names trusted beside those of the local machine, `prefix` is the path
    under which a proxy shows the app, stripped before it reaches the app. `timeline` is that of the
    report's run, where it was built already. With `follow`, a run that is still written is read
    again as it grows. `all_runs` is the path of the list that it was chosen from.
    """
    follower = Follower(report) if follow else None
    current = Current(follower.report if follower else report, timeline)
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
    for routes in (data_routes(current), export_routes(current)):
        app.server.register_blueprint(routes, url_prefix="/data")
    app.index_string = document(app.get_asset_url)
    if follower:
        start_following(current, follower)
    app.layout = frame(report, current.shown.facts, app.get_relative_path, all_runs)
    _callbacks(app, current)
    add_headers(app.server, [f"'{each.strip(chr(39))}'" for each in app.csp_hashes()])
    return app


Page = Callable[[Shown, Relative], Component]
PAGES: dict[str, Page] = {
    "": lambda shown, relative: overview(
        shown.report, headline(shown.analysis), shown.analysis.steps, shown.findings, relative
    ),
    "timeline": lambda shown, relative: timeline_page(
        shown.timeline, shown.findings, shown.split, relative
    ),
    "ranks": lambda shown, relative: ranks_page(shown.analysis, shown.culprits, relative),
    "buckets": lambda shown, relative: buckets_page(
        shown.analysis, shown.bucket_parameters, relative
    ),
    "data-loading": lambda shown, relative: data_page(shown.analysis, relative),
    "stacks": lambda shown, relative: stacks_page(shown.analysis, shown.culprits, relative),
    "checks": lambda shown, relative: checks_page(shown.report, shown.findings, relative),
}
CHARTS: dict[str, Callable[[Shown, str], go.Figure]] = {
    "rank-bars": lambda shown, theme: rank_bars(shown.analysis.ranks, theme),
    "excess-map": lambda shown, theme: excess_map(shown.map, theme),
    "step-areas": lambda shown, theme: step_areas(shown.series, theme),
    "excess-bars": lambda shown, theme: excess_bars(phase_excesses(shown.analysis), theme),
    "bucket-bars": lambda shown, theme: bucket_bars(shown.buckets, theme),
    "input-map": lambda shown, theme: input_map(shown.inputs, theme),
}


def _callbacks(app: Dash, current: Current) -> None:
    relative = app.get_relative_path

    @app.callback(
        Output("page", "children"), Input("address", "pathname"), Input("version", "data")
    )
    def page(path: str | None, version: int | None) -> Component:
        del version  # what is shown now is the newest
        name = app.strip_relative_path(path or "/") or ""
        return PAGES[name](current.shown, relative) if name in PAGES else not_found(relative)

    for chart, figure in CHARTS.items():
        app.callback(Output(chart, "figure"), Input("theme", "data"))(
            lambda theme, figure=figure: figure(current.shown, _known(theme))
        )
    _clientside(app, "theme", Output("theme", "data"), Input("theme-button", "n_clicks"))
    _clientside(app, "openCell", Output("address", "href"), Input("excess-map", "clickData"))
    _clientside(
        app, "openCell", Output("address", "href", allow_duplicate=True),
        Input("input-map", "clickData"), prevent_initial_call=True,
    )  # fmt: skip


def _known(theme: str | None) -> str:
    """The browser says which theme is on; until then there is nothing to draw."""
    if theme is None:
        raise PreventUpdate
    return theme


def _clientside(app: Dash, name: str, *dependencies: Any, **options: Any) -> None:
    """By name, not as inline script, so that the content policy need not allow any."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("ddpdoctor", name), *dependencies, **options
    )
