"""A stretch of the timeline in numbers: what the canvas shows, for tables and for searching."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddpdoctor.analysis.ragged import Floats, Ints
from ddpdoctor.analysis.timeline import CallKinds, Timeline
from ddpdoctor.events import Phase


@dataclass(frozen=True)
class WindowRow:
    """One rank within the stretch."""

    rank: int
    host: str
    ms: tuple[float, ...]  # by phase
    worst_sync: int | None  # the step in which it exceeded the others most
    excess_ms: float | None


@dataclass(frozen=True)
class WindowTable:
    """Milliseconds by phase of each rank, as far as they lie within the stretch."""

    begin_ms: float
    end_ms: float
    steps: tuple[int, int] | None  # first and last that overlap it
    phases: tuple[Phase, ...]
    rows: tuple[WindowRow, ...]


def window_table(timeline: Timeline, begin_ms: float, end_ms: float, rows: Ints) -> WindowTable:
    grid = timeline.grid
    spent = _spent(timeline, begin_ms, end_ms, rows)
    with np.errstate(invalid="ignore"):
        inside = (grid.end_ms >= begin_ms) & (grid.begin_ms <= end_ms)
    columns = np.flatnonzero(inside.any(axis=0))
    steps = (int(grid.syncs[columns[0]]), int(grid.syncs[columns[-1]])) if len(columns) else None
    return WindowTable(
        begin_ms,
        end_ms,
        steps,
        grid.phases,
        tuple(_row(timeline, int(row), own, columns) for row, own in zip(rows, spent, strict=True)),
    )


def _spent(timeline: Timeline, begin_ms: float, end_ms: float, rows: Ints) -> Floats:
    """(row, phase of the grid)."""
    spans = timeline.spans
    ranges = timeline.span_rows.overlapping(rows, begin_ms, end_ms)
    index = ranges.indices()
    begin = np.maximum(spans.begin_ms[index], begin_ms)
    length = np.maximum(0.0, np.minimum(spans.end_ms[index], end_ms) - begin)
    key = ranges.rows() * len(Phase) + spans.phase[index]
    sums = np.bincount(key, length, len(rows) * len(Phase)).reshape(len(rows), len(Phase))
    return np.asarray(sums[:, [int(phase) for phase in timeline.grid.phases]])


def _row(timeline: Timeline, row: int, spent: Floats, columns: Ints) -> WindowRow:
    grid, rank = timeline.grid, timeline.ranks[row]
    place = np.flatnonzero(grid.ranks == rank)
    worst, excess = None, None
    if len(place) and len(columns):
        own = grid.own_excess_ms[place[0], columns]
        if np.isfinite(own).any():
            at = int(np.nanargmax(own))
            worst, excess = int(grid.syncs[columns[at]]), float(own[at])
    return WindowRow(rank, timeline.hosts[row], tuple(spent.tolist()), worst, excess)


def bucket_kinds(
    kinds: CallKinds, bucket: int, group: int | None = None, nbytes: int | None = None
) -> Ints:
    """Numbers of the kinds of calls that reduce this bucket, of any group and size by default."""
    fits = kinds.bucket == bucket
    if group is not None:
        fits = fits & (kinds.group == group)
    if nbytes is not None:
        fits = fits & (kinds.nbytes == nbytes)
    return np.flatnonzero(fits)


def next_of_kinds(timeline: Timeline, kinds: Ints, rank: int, from_ms: float) -> int | None:
    """The call of this rank of these kinds that begins next, else its last one; None for none."""
    calls = timeline.calls
    row = int(np.searchsorted(np.asarray(timeline.ranks), rank))
    if row >= len(timeline.ranks) or timeline.ranks[row] != rank:
        return None
    first, last = timeline.call_rows.starts[row : row + 2]
    own = int(first) + np.flatnonzero(np.isin(calls.kind[first:last], kinds))
    if not len(own):
        return None
    place = int(np.searchsorted(calls.begin_ms[own], from_ms))
    return int(own[min(place, len(own) - 1)])
