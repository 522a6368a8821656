"""Routes that give the view away as files: a page that opens offline, a table, a trace."""

from __future__ import annotations

import gzip
import io

import flask

from ddpdoctor.analysis.windowed import WindowTable, window_table
from ddpdoctor.dashboards.offline import Stretch, TooMuch, page_of
from ddpdoctor.dashboards.routes import asked_rows, asked_stretch
from ddpdoctor.dashboards.shown import Current, Shown
from ddpdoctor.export import stream_trace
from ddpdoctor.sheets import SHEETS, Column, Row, Sheet, as_csv

MOST_TRACED = 2_000_000  # spans in a trace from here; `ddpdoctor export` has no limit


def export_routes(current: Current) -> flask.Blueprint:
    routes = flask.Blueprint("exports", __name__)

    @routes.get("/page.html")
    def page() -> flask.Response:
        try:
            text = page_of(current.shown, _stretch(current.shown))
        except TooMuch as error:
            return flask.Response(f"{error}\n", 413, mimetype="text/plain")
        return _file(text.encode(), "timeline.html", "text/html")

    @routes.get("/table.csv")
    def table() -> flask.Response:
        stretch = _stretch(current.shown)
        made = window_table(current.shown.timeline, stretch.begin_ms, stretch.end_ms, stretch.rows)
        return _file(as_csv(_sheet(made)).encode(), "timeline.csv", "text/csv")

    @routes.get("/trace.json.gz")
    def trace() -> flask.Response:
        stretch = _stretch(current.shown)
        parts = (stretch.begin_ms, stretch.end_ms, stretch.rows)
        spans, calls = current.shown.timeline.window(*parts)
        if len(spans.id) + len(calls.id) > MOST_TRACED:
            says = "Too many spans for one answer: use `ddpdoctor export`, or a shorter stretch.\n"
            return flask.Response(says, 413, mimetype="text/plain")
        out = io.StringIO()
        stream_trace(current.shown.timeline, out, *parts)
        packed = gzip.compress(out.getvalue().encode(), 6)
        return _file(packed, "timeline.trace.json.gz", "application/gzip")

    @routes.get("/csv/<name>")
    def sheet(name: str) -> flask.Response:
        """The numbers of a page's table."""
        if name not in SHEETS:
            flask.abort(404)
        text = as_csv(SHEETS[name](current.shown.analysis))
        return _file(text.encode(), f"{name}.csv", "text/csv")

    return routes


def _stretch(shown: Shown) -> Stretch:
    rows = asked_rows(len(shown.timeline.ranks))
    return Stretch(*asked_stretch(shown), rows, flask.request.args.get("at", ""))


def _sheet(table: WindowTable) -> Sheet:
    phases = (Column(f"{phase.label} ms") for phase in table.phases)
    columns = (
        Column("rank"), Column("host"), *phases, Column("worst step"), Column("over others ms"),
    )  # fmt: skip
    rows = (Row((row.rank, row.host, *row.ms, row.worst_sync, row.excess_ms)) for row in table.rows)
    return Sheet("View", columns, tuple(rows), "")


def _file(body: bytes, name: str, mimetype: str) -> flask.Response:
    response = flask.Response(body, mimetype=mimetype)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["Cache-Control"] = "private, no-cache"
    return response
