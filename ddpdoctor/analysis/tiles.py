"""Pictures of many spans, one byte a cell: whom each step waited for, and the phase at each time.

Both keep the one bad rank: cells that are put together show the worst of them, never the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.grid import StepGrid
from ddpdoctor.analysis.ragged import Ints, Ranges
from ddpdoctor.analysis.timeline import Timeline

Bytes = npt.NDArray[np.uint8]

LEVELS: Final = 15
QUIET_SHARE: Final = 0.035  # of a step: a smaller excess is noise
FULL_SHARE: Final = 0.45  # of a step: from here on a cell is at its strongest
CULPRIT: Final = 16  # bit of a phase: this is what made the rank take longer than the others
RECORDED: Final = 8  # bit of a cell that the rank recorded; below it the phase, above the level


def blame_codes(grid: StepGrid) -> Bytes:
    """(rank, step): level x 16 + RECORDED + the phase that exceeds the other ranks most.

    The level grows from 0 (quiet) to LEVELS with the rank's own time over the median of the others;
    0 where nothing was recorded. Ordered by level, so that the largest byte is the worst cell.
    """
    if not grid.own_excess_ms.size:
        return np.zeros(grid.own_excess_ms.shape, np.uint8)
    known = np.isfinite(grid.own_excess_ms)
    typical = float(np.nanmedian(grid.step_ms)) if np.isfinite(grid.step_ms).any() else 1.0
    share = np.nan_to_num(grid.own_excess_ms) / max(typical, 1e-9)
    part = np.clip((share - QUIET_SHARE) / (FULL_SHARE - QUIET_SHARE), 0.0, 1.0)
    level = np.where(share > QUIET_SHARE, 1 + np.floor(part * (LEVELS - 1)), 0).astype(np.uint8)
    return np.where(known, level * 16 + RECORDED + grid.cause.astype(np.uint8), 0).astype(np.uint8)


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
    worst = codes[:, steps].max(axis=1, initial=0)
    return np.array([begin + int(np.argmax(worst[begin : begin + each])) for begin in begins])


def blame_by_row(timeline: Timeline) -> Bytes:
    """`blame_codes` with a row for each rank of the timeline, also for those without a step."""
    codes = blame_codes(timeline.grid)
    rows = np.zeros((len(timeline.ranks), codes.shape[1]), np.uint8)
    rows[timeline.row_of(timeline.grid.ranks)] = codes
    return rows


@dataclass(frozen=True)
class Bins:
    """`count` stretches of equal length, from `begin_ms` on."""

    begin_ms: float
    each_ms: float
    count: int

    @property
    def end_ms(self) -> float:
        return self.begin_ms + self.count * self.each_ms


def phase_tile(timeline: Timeline, blame: Bytes, rows: Ints, bins: Bins) -> Bytes:
    """(row, bin): 1 + the phase in the middle of the bin, 0 where no span was recorded.

    With CULPRIT where that phase is what `blame` says of the rank in that step.
    """
    ranges = timeline.span_rows.overlapping(rows, bins.begin_ms, bins.end_ms)
    return _sampled(timeline, ranges, _phase_codes(timeline, blame, rows, ranges), bins)


def _phase_codes(timeline: Timeline, blame: Bytes, rows: Ints, ranges: Ranges) -> Bytes:
    spans, syncs = timeline.spans, timeline.grid.syncs
    index = ranges.indices()
    phase = spans.phase[index].astype(np.uint8)
    if not len(syncs):
        return np.asarray(phase + np.uint8(1))
    sync = spans.sync[index]
    if syncs[-1] - syncs[0] + 1 == len(syncs):  # no step is missing on all ranks
        column = np.clip(sync - syncs[0], 0, len(syncs) - 1)
    else:
        column = np.minimum(np.searchsorted(syncs, sync), len(syncs) - 1)
    code = blame[rows[ranges.rows()], column]
    blamed = (code >= CULPRIT) & (code % RECORDED == phase) & (syncs[column] == sync)
    return np.asarray(phase + 1 + CULPRIT * blamed, np.uint8)


def _sampled(timeline: Timeline, ranges: Ranges, code: Bytes, bins: Bins) -> Bytes:
    spans = timeline.spans
    index, row = ranges.indices(), ranges.rows()
    # each span begins with its phase and ends with none; where the next one begins at once, it
    # comes later, and the last one before the middle of a bin is what the bin shows
    times = np.empty(2 * len(index))
    times[0::2], times[1::2] = spans.begin_ms[index], spans.end_ms[index]
    codes = np.zeros(2 * len(index) + 1, np.uint8)
    codes[1::2] = code
    at = np.ceil((times - bins.begin_ms) / bins.each_ms - 0.5)
    wide = bins.count + 1
    place = np.repeat(row, 2) * wide + at.clip(0, bins.count).astype(np.int64)
    latest = np.zeros(len(ranges.first) * wide, np.int32)
    latest[place] = np.arange(1, len(place) + 1)
    filled = np.maximum.accumulate(latest.reshape(-1, wide), axis=1)[:, : bins.count]
    shown: Bytes = codes[filled]
    return shown
