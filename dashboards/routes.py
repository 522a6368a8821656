"""The data routes that the timeline's canvas reads."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any, Final

import flask

from ddpdoctor.analysis.grid import StepMap, StepSeries
from ddpdoctor.analysis.timeline import CallDetail, SpanDetail, Timeline, call_detail, span_detail
from ddpdoctor.dashboards.links import PlacedFinding
from ddpdoctor.dashboards.palette import DARK, LIGHT, Palette
from ddpdoctor.dashboards.wire import Column, encode, mark_columns, whole_columns, window_columns
from ddpdoctor.events import Op, Phase

MOST_SPANS: Final = 400_000  # in one answer; the browser asks for windows far below it


def data_routes(
    timeline: Timeline,
    series: StepSeries,
    cells: StepMap,
    findings: list[PlacedFinding],
) -> flask.Blueprint:
    """`meta`, `whole`, `window` and the details of one span or call, all under `data/`."""
    routes = flask.Blueprint("data", __name__)

    @routes.get("/meta")
    def meta() -> flask.Response:
        return _json(_meta(timeline, findings))

    @routes.get("/whole")
    def whole() -> flask.Response:
        return _binary(whole_columns(series, cells))

    @routes.get("/window")
    def window() -> flask.Response:
        begin_ms, end_ms = _number("t0", 0.0), _number("t1", timeline.duration_ms)
        spans, calls = timeline.window(begin_ms, end_ms)
        marks = timeline.marks.within(begin_ms, end_ms)
        if len(spans.id) + len(calls.id) + len(marks.rank) > MOST_SPANS:
            flask.abort(413)
        return _binary(window_columns(spans, calls) | mark_columns(marks))

    @routes.get("/span/<int:number>")
    def span(number: int) -> flask.Response:
        return _detail(span_detail(timeline, number))

    @routes.get("/call/<int:number>")
    def call(number: int) -> flask.Response:
        return _detail(call_detail(timeline, number))

    return routes


def _number(name: str, default: float) -> float:
    text = flask.request.args.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        flask.abort(400)
    return value


def _meta(timeline: Timeline, findings: list[PlacedFinding]) -> dict[str, Any]:
    return {
        "duration": timeline.duration_ms,
        "ranks": timeline.ranks,
        "hosts": timeline.hosts,
        "split": Phase.WAIT in timeline.grid.phases,
        "spans": len(timeline.spans.id) + len(timeline.calls.id) + len(timeline.marks.rank),
        "marks": timeline.marks.names,
        "phases": {int(phase): phase.label for phase in Phase},
        "ops": {int(op): op.label for op in Op},
        "colours": {"light": _colours(LIGHT), "dark": _colours(DARK)},
        "findings": [
            {
                "id": placed.id,
                "query": placed.query,
                "severity": placed.finding.severity.label,
                "culprits": placed.finding.culprits,
                "victims": placed.finding.victims,
                "steps": placed.finding.steps,
            }
            for placed in findings
        ],
    }


def _colours(palette: Palette) -> dict[int, str]:
    return {int(phase): colour for phase, colour in palette.phases.items()}


def _detail(detail: SpanDetail | CallDetail | None) -> flask.Response:
    if detail is None:
        flask.abort(404)
    document = asdict(detail)
    if isinstance(detail, SpanDetail):
        document["phase"] = detail.phase.label
    else:
        document["op"] = detail.op.label
    return _json(document)


def _json(document: dict[str, Any]) -> flask.Response:
    return _private(flask.Response(json.dumps(document), mimetype="application/json"))


def _binary(columns: dict[str, Column]) -> flask.Response:
    return _private(flask.Response(encode(columns), mimetype="application/octet-stream"))


def _private(response: flask.Response) -> flask.Response:
    response.headers["Cache-Control"] = "private, no-cache"
    return response
