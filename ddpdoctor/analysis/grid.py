"""Time per rank, step and phase as one array: what the overview and the step ruler show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.events import Phase
from ddpdoctor.tables import STEP_PHASES

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

OWN_PHASES = (
    Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.BETWEEN,
)  # fmt: skip
UNSPLIT_PHASES = (
    Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.BLOCKED, Phase.OPTIMIZER, Phase.BETWEEN,
)  # fmt: skip
SCALE_PERCENTILE = 99.0
NOISE_SHARE = 0.05  # of a step
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class StepGrid:
    """Milliseconds, NaN where a rank did not record a step.

    Columns are synchronised steps, by which ranks are aligned. `phases` holds WAIT and TRANSFER,
    or BLOCKED in their place where the ranks' clocks cannot be compared.
    """

    ranks: Ints
    syncs: Ints
    phases: tuple[Phase, ...]
    phase_ms: Floats  # (phase, rank, step)
    begin_ms: Floats  # (rank, step), from the run's first moment
    end_ms: Floats

    def of_phase(self, phase: Phase) -> Floats:
        """(rank, step)."""
        spent: Floats = self.phase_ms[self.phases.index(phase)]
        return spent

    @cached_property
    def own_excess_ms(self) -> Floats:
        """A rank's own time (no wait, no transfer) over the median of the others in that step."""
        return _over_others(sum_of(self, OWN_PHASES))

    @cached_property
    def cause(self) -> Ints:
        """The phase that exceeds the median of the others most, per rank and step."""
        excess = np.stack([_over_others(self.of_phase(phase)) for phase in OWN_PHASES])
        largest = np.argmax(np.nan_to_num(excess, nan=-np.inf), axis=0)
        cause: Ints = np.array(OWN_PHASES, np.int64)[largest]
        return cause

    @cached_property
    def step_ms(self) -> Floats:
        return np.asarray(self.end_ms - self.begin_ms)


def build_grid(analysis: Analysis, origin_ns: int) -> StepGrid:
    """All steps that were recorded in detail, warm-up included."""
    steps = analysis.tables.steps
    ranks, row = np.unique(steps["rank"].to_numpy(np.int64), return_inverse=True)
    syncs, column = np.unique(steps["sync"].to_numpy(np.int64), return_inverse=True)

    def spread(values: npt.NDArray[np.generic]) -> Floats:
        cells = np.full((len(ranks), len(syncs)), np.nan)
        cells[row, column] = values
        return cells

    def phase(which: Phase) -> Floats:
        parts = (Phase.WAIT, Phase.TRANSFER) if which is Phase.BLOCKED else (which,)
        spent = sum(steps[f"{part.label}_ns"].to_numpy(np.float64) for part in parts)
        return spread(np.asarray(spent) / _NS_PER_MS)

    phases = STEP_PHASES if analysis.tables.clock.comparable else UNSPLIT_PHASES
    return StepGrid(
        ranks,
        syncs,
        phases,
        np.stack([phase(which) for which in phases]),
        spread((steps["begin_ns"].to_numpy(np.int64) - origin_ns) / _NS_PER_MS),
        spread((steps["end_ns"].to_numpy(np.int64) - origin_ns) / _NS_PER_MS),
    )


def sum_of(grid: StepGrid, phases: Sequence[Phase]) -> Floats:
    """Milliseconds in several phases together, (rank, step)."""
    total: Floats = np.sum([grid.of_phase(phase) for phase in phases], axis=0)
    return total


def median_of_others(cells: Floats) -> Floats:
    """Per rank and step, the median of the other ranks that recorded it; NaN where there is none.

    With two ranks the median of both would show half of what one is late by.
    """
    ranks = len(cells)
    if ranks < 2:
        return np.full_like(cells, np.nan)
    known = np.isfinite(cells)
    count = known.sum(axis=0)
    ordered = np.sort(np.ascontiguousarray(cells.T), axis=1)  # NaN last

    def nth(n: Ints) -> Floats:
        return np.asarray(
            np.take_along_axis(ordered, np.clip(n, 0, ranks - 1)[:, None], axis=1)[:, 0]
        )

    def nth_of_others(n: Ints) -> Floats:
        """The n-th where the rank itself, which is up to it or behind it, is left out."""
        upto, behind = nth(n), nth(n + 1)
        return np.where(cells <= upto, behind, upto)

    of_known = (nth_of_others((count - 2) // 2) + nth_of_others((count - 1) // 2)) / 2
    of_unknown = (nth((count - 1) // 2) + nth(count // 2)) / 2
    median = np.where(known, of_known, of_unknown)
    return np.where(count - known > 0, median, np.nan)


def _over_others(cells: Floats) -> Floats:
    """0 where a rank was alone."""
    excess = cells - median_of_others(cells)
    return np.where(np.isfinite(cells) & ~np.isfinite(excess), 0.0, excess)


@dataclass(frozen=True)
class StepMap:
    """A grid of cells for a picture: neighbouring steps are pooled, the worst of them shown."""

    ranks: Ints
    first_sync: Ints
    last_sync: Ints
    excess_ms: Floats  # (rank, column)
    begin_ms: Floats
    end_ms: Floats
    cause: Ints
    top_ms: float  # where a colour scale should end


def pooled(grid: StepGrid, most_columns: int) -> StepMap:
    """At most so many columns. The mean would hide the one bad step, so the largest stays."""
    count = len(grid.syncs)
    size = max(1, -(-count // most_columns))
    starts = np.arange(0, count, size)
    stops = np.minimum(starts + size, count)
    excess = np.nan_to_num(grid.own_excess_ms, nan=-np.inf)
    chosen = [
        start + np.argmax(excess[:, start:stop], axis=1)
        for start, stop in zip(starts, stops, strict=True)
    ]
    pick = np.array(chosen, np.int64).reshape(len(starts), len(grid.ranks)).T
    rows = np.arange(len(grid.ranks))[:, None]
    return StepMap(
        grid.ranks,
        grid.syncs[starts],
        grid.syncs[stops - 1],
        grid.own_excess_ms[rows, pick],
        grid.begin_ms[:, starts],
        grid.end_ms[:, stops - 1],
        grid.cause[rows, pick],
        _top_ms(grid),
    )


def _top_ms(grid: StepGrid) -> float:
    """One spike must not darken all the rest, and noise must not look like a fault."""
    if not grid.own_excess_ms.size:
        return 1.0
    typical = float(np.nanmedian(grid.step_ms))
    return max(float(np.nanpercentile(grid.own_excess_ms, SCALE_PERCENTILE)), NOISE_SHARE * typical)


@dataclass(frozen=True)
class InputMap:
    """Milliseconds of input wait, of neighbouring steps the longest."""

    ranks: Ints
    first_sync: Ints
    input_ms: Floats  # (rank, column)
    top_ms: float  # where a colour scale should end


def input_map(grid: StepGrid, most_columns: int) -> InputMap:
    count = len(grid.syncs)
    size = max(1, -(-count // most_columns))
    waits = np.nan_to_num(grid.of_phase(Phase.INPUT))
    starts = np.arange(0, count, size)
    worst = np.maximum.reduceat(waits, starts, axis=1) if count else waits
    top = float(np.percentile(waits, SCALE_PERCENTILE)) if waits.size else 0.0
    return InputMap(grid.ranks, grid.syncs[starts], worst, max(top, 1e-3))


@dataclass(frozen=True)
class StepSeries:
    """The steps of the job, means over its ranks."""

    sync: Ints
    begin_ms: Floats  # of the first rank to begin it
    end_ms: Floats  # of the last rank to end it
    step_ms: Floats
    phases: tuple[Phase, ...]
    phase_ms: Floats  # (phase, step)


def step_series(grid: StepGrid) -> StepSeries:
    known = np.isfinite(grid.step_ms)
    ranks = np.maximum(known.sum(axis=0), 1)
    return StepSeries(
        grid.syncs,
        np.min(np.where(known, grid.begin_ms, np.inf), axis=0, initial=np.inf),
        np.max(np.where(known, grid.end_ms, -np.inf), axis=0, initial=-np.inf),
        np.nansum(grid.step_ms, axis=0) / ranks,
        grid.phases,
        np.nansum(grid.phase_ms, axis=1) / ranks,
    )


def place_of(grid: StepGrid, ranks: Sequence[int], ranges: Sequence[tuple[int, int]]) -> int | None:
    """The step in which these ranks exceeded the others most; None without any step.

    Where no rank is to blame, it is the middle one of the steps.
    """
    inside = np.zeros(len(grid.syncs), np.bool_)
    for first, last in ranges:
        inside |= (grid.syncs >= first) & (grid.syncs <= last)
    columns = np.flatnonzero(inside)
    if not len(columns):
        return None
    rows = np.flatnonzero(np.isin(grid.ranks, np.asarray(ranks, np.int64)))
    if not len(rows):
        return int(grid.syncs[columns[len(columns) // 2]])
    excess = np.nan_to_num(grid.own_excess_ms[np.ix_(rows, columns)], nan=-np.inf).max(axis=0)
    return int(grid.syncs[columns[int(np.argmax(excess))]])
