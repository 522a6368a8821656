"""The data routes that the timeline's canvas reads, all under `data/`.

`meta` and `steps` describe the run, `blame` and `phases` are pictures of many spans, `window` holds
single spans, and `span`, `call` the numbers of one of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import flask
import numpy as np

from ddpdoctor.analysis.details import CallDetail, SpanDetail, call_detail, span_detail
from ddpdoctor.analysis.ragged import Ints
from ddpdoctor.analysis.seenlines import last_seen
from ddpdoctor.analysis.tiles import Bins, Bytes, phase_tile, pooled_columns, worst_rows
from ddpdoctor.analysis.windowed import (
    WindowTable,
    bucket_kinds,
    next_of_kinds,
    window_table,
)
from ddpdoctor.dashboards.links import PlacedFinding
from ddpdoctor.dashboards.palette import DARK, LIGHT, Palette
from ddpdoctor.dashboards.shown import Current, Shown
from ddpdoctor.dashboards.wire import Column, encode, mark_columns, step_columns, window_columns
from ddpdoctor.events import Op, Phase

MOST_SPANS: Final = 400_000  # in one answer; the browser asks for windows far below it
TILE: Final = 512  # columns and rows of a picture
MOST_LEVEL: Final = 40  # of a tile: 2^40 us are 12 days
FINEST_MS: Final = 0.001  # a bin of a tile of level 0
MOST_TILE: Final = 2**31  # number of a tile
MOST_TILES: Final = 8  # in one answer

Answer = Callable[..., flask.Response]  # to what is shown, and the numbers in the path


def data_routes(current: Current) -> flask.Blueprint:
    routes = flask.Blueprint("data", __name__)
    routes.add_url_rule("/live", "live", lambda: live(current))
    for rule, answer in ROUTES.items():
        routes.add_url_rule(rule, answer.__name__, _of_shown(current, answer))
    return routes


def _of_shown(current: Current, answer: Answer) -> Callable[..., flask.Response]:
    return lambda **numbers: answer(current.shown, **numbers)


def live(current: Current) -> flask.Response:
    """Asked each second: whether there is something new to show."""
    still_s = round(current.still_s, 1)
    state = {"version": current.version, "course": current.course.value, "still_s": still_s}
    return _json(state)


def meta(shown: Shown) -> flask.Response:
    return _json(meta_of(shown))


def steps(shown: Shown) -> flask.Response:
    return _binary(step_columns(shown.series))


def blame(shown: Shown, level: int, tile: int) -> flask.Response:
    """All ranks by TILE columns of 2^level steps each."""
    if level > MOST_LEVEL or tile > MOST_TILE:
        flask.abort(404)
    size = 2**level
    return _tiles(tile, lambda at: pooled_columns(shown.blame, at * TILE * size, TILE, size))


def phases(shown: Shown, level: int, tile: int, each: int, strip: int) -> flask.Response:
    """TILE bins of 2^level us by at most TILE rows of the worst of `each` ranks."""
    ranks = len(shown.timeline.ranks)
    if level > MOST_LEVEL or max(tile, strip) > MOST_TILE or not 1 <= each <= ranks:
        flask.abort(404)
    each_ms = FINEST_MS * 2**level

    def made(at: int) -> Bytes:
        bins = Bins(at * TILE * each_ms, each_ms, TILE)
        columns = shown.columns_within(bins.begin_ms, bins.end_ms)
        rows = worst_rows(shown.blame, strip * TILE * each, TILE, each, columns)
        return phase_tile(shown.changes, rows, bins)

    return _tiles(tile, made)


def window(shown: Shown) -> flask.Response:
    """Single spans and marks; collectives, too, unless `calls` is 0."""
    timeline = shown.timeline
    begin_ms, end_ms = asked_stretch(shown)
    rows, with_calls = asked_rows(len(timeline.ranks)), asked_number("calls", 1) != 0
    spans, calls = timeline.window(begin_ms, end_ms, rows, with_calls=with_calls)
    marks = timeline.marks.within(begin_ms, end_ms)
    if len(spans.id) + len(calls.id) + len(marks.rank) > MOST_SPANS:
        flask.abort(413)
    return _binary(window_columns(spans, calls) | mark_columns(marks))


def table(shown: Shown) -> flask.Response:
    """The stretch in numbers."""
    rows = asked_rows(len(shown.timeline.ranks))
    return _json(_table(window_table(shown.timeline, *asked_stretch(shown), rows)))


def bucket(shown: Shown, number: int) -> flask.Response:
    """The next all-reduce of a bucket on a rank; of one `group` and size in `bytes`, if asked."""
    timeline = shown.timeline
    kinds = bucket_kinds(timeline.calls.kinds, number, _asked_whole("group"), _asked_whole("bytes"))
    rank, begin_ms = int(asked_number("rank", 0)), asked_number("from", 0.0)
    found = next_of_kinds(timeline, kinds, rank, begin_ms)
    return _detail(None if found is None else call_detail(timeline, found))


def span(shown: Shown, number: int) -> flask.Response:
    return _detail(span_detail(shown.timeline, number))


def call(shown: Shown, number: int) -> flask.Response:
    return _detail(call_detail(shown.timeline, number))


def _tiles(first: int, made: Callable[[int], Bytes]) -> flask.Response:
    """One after the other, as many as `tiles` says: each request has its price."""
    count = asked_number("tiles", 1)
    if not 1 <= count <= MOST_TILES:
        flask.abort(400)
    return _bytes(b"".join(made(first + more).tobytes() for more in range(int(count))))


ROUTES: Final[dict[str, Answer]] = {
    "/meta": meta,
    "/steps": steps,
    "/blame/<int:level>/<int:tile>": blame,
    "/phases/<int:level>/<int:tile>/<int:each>/<int:strip>": phases,
    "/window": window,
    "/table": table,
    "/bucket/<int:number>": bucket,
    "/span/<int:number>": span,
    "/call/<int:number>": call,
}


def asked_stretch(shown: Shown) -> tuple[float, float]:
    """From `t0` to `t1`, in milliseconds; the whole run by default."""
    return asked_number("t0", 0.0), asked_number("t1", shown.timeline.duration_ms)


def asked_rows(count: int) -> Ints:
    """The rows `r0` up to and without `r1`; all by default."""
    first, last = int(max(0, asked_number("r0", 0))), int(min(count, asked_number("r1", count)))
    return np.arange(first, max(first, last))


def asked_number(name: str, default: float) -> float:
    text = flask.request.args.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        flask.abort(400)
    return value


def _asked_whole(name: str) -> int | None:
    return int(asked_number(name, 0)) if name in flask.request.args else None


def meta_of(shown: Shown) -> dict[str, Any]:
    timeline = shown.timeline
    return {
        "duration": timeline.duration_ms,
        "ranks": timeline.ranks,
        "hosts": timeline.hosts,
        "split": Phase.WAIT in timeline.grid.phases,
        "stands": timeline.stands,
        "standing": _standing(shown),
        "clock_error": timeline.clock_error_ms,
        "spans": len(timeline.spans.id),
        "calls": len(timeline.calls.id) + len(timeline.marks.rank),
        "marks": timeline.marks.names,
        "phases": {int(phase): phase.label for phase in Phase},
        "ops": {int(op): op.label for op in Op},
        "colours": {"light": _colours(LIGHT), "dark": _colours(DARK)},
        "buckets": [asdict(part) for part in shown.bucket_parameters],
        "findings": [_placed(placed) for placed in shown.findings],
    }


def _standing(shown: Shown) -> dict[int, str]:
    """By rank the line in which it stood still at the end."""
    return {
        each.rank: f"{each.sites[0].file.rsplit('/', 1)[-1]}:{each.sites[0].line} "
        f"{each.sites[0].function}"
        for each in last_seen(shown.analysis)
        if each.seconds is not None and each.sites
    }


def _placed(placed: PlacedFinding) -> dict[str, Any]:
    return {
        "id": placed.id,
        "query": placed.query,
        "severity": placed.finding.severity.label,
        "message": placed.finding.message,
        "culprits": placed.finding.culprits,
        "victims": placed.finding.victims,
        "steps": placed.finding.steps,
        "hangs": placed.hangs,
    }


def _table(table: WindowTable) -> dict[str, Any]:
    return {
        "t0": table.begin_ms,
        "t1": table.end_ms,
        "steps": table.steps,
        "phases": [phase.label for phase in table.phases],
        "rows": [asdict(row) for row in table.rows],
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
    return _bytes(encode(columns))


def _bytes(body: bytes) -> flask.Response:
    return _private(flask.Response(body, mimetype="application/octet-stream"))


def _private(response: flask.Response) -> flask.Response:
    response.headers["Cache-Control"] = "private, no-cache"
    return response
