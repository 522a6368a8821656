"""Pictures of many spans, one byte a cell: whom each step waited for, and the phase at each time.

Both keep the one bad rank: cells that are put together show the worst of them, never the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.grid import StepGrid
from ddpdoctor.analysis.ragged import Floats, Ints, Numbers, Ragged
from ddpdoctor.analysis.timeline import Timeline

Bytes = npt.NDArray[np.uint8]

LEVELS: Final = 15
QUIET_SHARE: Final = 0.035  # of a step: a smaller excess is noise
FULL_SHARE: Final = 0.45  # of a step: from here on a cell is at its strongest
CULPRIT: Final = 16  # bit of a phase: this is what made the rank take longer than the others
AT_ONCE: Final = 1 << 20  # spans that are looked at together: what is made on the way takes memory
RECORDED: Final = 8  # bit of a cell that the rank recorded; below it the phase, above the level


def blame_codes(grid: StepGrid) -> Bytes:
    """(rank, step): level x 16 + RECORDED + the phase that exceeds the other ranks most.

    The level grows from 0 (quiet, and of no phase) to LEVELS with the rank's own time over the
    median of the others; 0 where nothing was recorded. Ordered by level, so that the largest byte
    is the worst cell.
    """
    if not grid.own_excess_ms.size:
        return np.zeros(grid.own_excess_ms.shape, np.uint8)
    known = np.isfinite(grid.own_excess_ms)
    typical = float(np.nanmedian(grid.step_ms)) if np.isfinite(grid.step_ms).any() else 1.0
    share = np.nan_to_num(grid.own_excess_ms) / max(typical, 1e-9)
    part = np.clip((share - QUIET_SHARE) / (FULL_SHARE - QUIET_SHARE), 0.0, 1.0)
    level = np.where(share > QUIET_SHARE, 1 + np.floor(part * (LEVELS - 1)), 0).astype(np.uint8)
    cause = np.where(level > 0, grid.cause, 0).astype(np.uint8)
    return np.where(known, level * 16 + RECORDED + cause, 0).astype(np.uint8)


def pooled_columns(codes: Bytes, first: int, columns: int, size: int) -> Bytes:
    """The worst of each `size` neighbouring steps, from step number `first` on; 0 beyond the last.

    (rank, columns).
    """
    part = codes[:, first : first + columns * size]
    padded = np.zeros((len(codes), columns * size), np.uint8)
    padded[:, : part.shape[1]] = part
    worst: Bytes = padded.reshape(len(codes), columns, size).max(axis=2)
    return worst


def worst_rows(codes: Bytes, first: int, rows: int, each: int, steps: slice) -> Ints:
    """For each `each` neighbouring ranks from `first` on, the row that is worst in these steps."""
    begins = np.arange(first, min(first + rows * each, len(codes)), each)
    if each == 1 or not codes.shape[1]:
        return begins
    worst = np.zeros(len(begins) * each, np.uint8)
    part = codes[first : first + len(worst), steps]
    worst[: len(part)] = part.max(axis=1, initial=0)
    return np.asarray(begins + worst.reshape(-1, each).argmax(axis=1))


def blame_by_row(timeline: Timeline) -> Bytes:
    """`blame_codes` with a row for each rank of the timeline, also for those without a step."""
    codes = blame_codes(timeline.grid)
    rows = np.zeros((len(timeline.ranks), codes.shape[1]), np.uint8)
    rows[timeline.row_of(timeline.grid.ranks)] = codes
    return rows


@dataclass(frozen=True)
class Changes:
    """What each rank shows, from one change to the next: 1 + the phase, 0 for nothing.

    With CULPRIT where that phase is what `blame` says of the rank in that step. Each row begins
    with nothing, in the far past, so that one change is always the last before any moment.
    """

    rows: Ragged
    code: Bytes


def phase_changes(timeline: Timeline, blame: Bytes) -> Changes:
    spans, starts = timeline.spans, timeline.span_rows.starts
    ends_row = np.zeros(len(spans.id), np.bool_)
    ends_row[starts[1:][np.diff(starts) > 0] - 1] = True
    idle = ends_row.copy()  # nothing follows at once
    idle[:-1] |= spans.end_ms[:-1] < spans.begin_ms[1:]
    # a row's first change comes before its spans, and each stretch of nothing after its span
    row = timeline.row_of(spans.rank)
    place = np.arange(len(idle)) + row + 1
    place[1:] += np.cumsum(idle)[:-1]
    count = len(idle) + int(idle.sum()) + len(timeline.ranks)
    at, code = np.full(count, -np.inf), np.zeros(count, np.uint8)
    at[place], code[place] = spans.begin_ms, _phase_codes(timeline, blame, row)
    at[place[idle] + 1] = spans.end_ms[idle]
    until = np.concatenate([[0], np.cumsum(idle)])[starts] + starts
    return Changes(Ragged(until + np.arange(len(starts)), at, at), code)


def _phase_codes(timeline: Timeline, blame: Bytes, row: Ints) -> Bytes:
    spans, syncs = timeline.spans, timeline.grid.syncs
    code = np.asarray(spans.phase + np.uint8(1), np.uint8)
    if not len(syncs):
        return code
    for begin in range(0, len(code), AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        column = _columns(syncs, spans.sync[part])
        cell = blame[row[part], column]
        blamed = (cell >= CULPRIT) & (cell % RECORDED == spans.phase[part])
        blamed &= syncs[column] == spans.sync[part]
        code[part] += CULPRIT * blamed.astype(np.uint8)
    return code


def _columns(syncs: Ints, sync: Numbers) -> Ints:
    """Of each of these steps, or of one beside it where there is no such step."""
    last = len(syncs) - 1
    if syncs[-1] - syncs[0] == last:  # no step is missing on all ranks
        return np.asarray(np.clip(sync - syncs[0], 0, last))
    return np.minimum(np.searchsorted(syncs, sync), last)


@dataclass(frozen=True)
class Bins:
    """`count` stretches of equal length, from `begin_ms` on."""

    begin_ms: float
    each_ms: float
    count: int

    @property
    def end_ms(self) -> float:
        return self.begin_ms + self.count * self.each_ms

    def after(self, at_ms: Floats) -> Ints:
        """The first bin whose middle is not before this moment."""
        place = np.ceil((at_ms - self.begin_ms) / self.each_ms - 0.5)
        return np.asarray(np.clip(place, 0, self.count), np.int64)


def phase_tile(changes: Changes, rows: Ints, bins: Bins) -> Bytes:
    """(row, bin): what the rank shows in the middle of the bin."""
    ranges = changes.rows.changing(rows, bins.begin_ms, bins.end_ms)
    index = ranges.indices()
    begin = bins.after(changes.rows.begin[index])
    end = np.empty_like(begin)
    end[:-1] = begin[1:]
    end[np.cumsum(ranges.sizes) - 1] = bins.count
    tile: Bytes = np.repeat(changes.code[index], end - begin).reshape(-1, bins.count)
    return tile
