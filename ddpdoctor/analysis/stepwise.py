"""Counted steps as arrays over ranks and steps: own time by phase, and what held a rank up.

Nothing here compares the clocks of two ranks, so all of it holds where they cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.grid import median_of_others
from ddpdoctor.analysis.model import StepRange
from ddpdoctor.events import Phase
from ddpdoctor.tables import Tables

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

LOCAL_PHASES = (
    Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.BETWEEN,
)  # fmt: skip
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Stepwise:
    """Milliseconds, (rank, step) where nothing else is said. NaN: not measured.

    Its steps are those counted that every rank recorded; rows follow `ranks`, which are sorted.
    """

    ranks: Ints
    syncs: Ints
    begin_ms: Floats  # (step,) on the clock of the first rank
    step_ms: Floats
    own_ms: Floats  # (phase, rank, step), of LOCAL_PHASES
    transfer_ms: Floats
    queued_ms: Floats  # ready to run, without a CPU
    throttled_ms: Floats  # of that, by a quota
    paused_ms: Floats  # collecting garbage

    @property
    def undisturbed_ms(self) -> Floats:
        """Own time without collections and without waiting for a CPU."""
        held = np.nan_to_num(self.queued_ms) + np.nan_to_num(self.paused_ms)
        own: Floats = np.maximum(0.0, self.own_ms.sum(axis=0) - held)
        return own

    def of_phase(self, phase: Phase) -> Floats:
        own: Floats = self.own_ms[LOCAL_PHASES.index(phase)]
        return own


def stepwise(tables: Tables, counted: StepRange) -> Stepwise:
    """Arrays of no columns where no step is counted."""
    steps = tables.steps
    rank, sync = steps["rank"].to_numpy(np.int64), steps["sync"].to_numpy(np.int64)
    ranks = np.unique(rank)
    rows = np.flatnonzero((sync >= counted.first_sync) & (sync <= counted.last_sync))
    rows, syncs = _on_all_ranks(rows, rank[rows], sync[rows], len(ranks))
    shape = (len(ranks), len(syncs))

    def column(name: str) -> Floats:
        values = steps[f"{name}_ns"].to_numpy()[rows].astype(np.float64).reshape(shape)
        return np.where(values < 0, np.nan, values / _NS_PER_MS)

    return Stepwise(
        ranks,
        syncs,
        steps["begin_ns"].to_numpy()[rows[: len(syncs)]].astype(np.float64) / _NS_PER_MS,
        column("step"),
        np.stack([column(phase.label) for phase in LOCAL_PHASES]),
        column("transfer"),
        column("run_queue"),
        column("throttled"),
        column("gc"),
    )


def _on_all_ranks(rows: Ints, rank: Ints, sync: Ints, ranks: int) -> tuple[Ints, Ints]:
    """Of these rows those of steps that every rank has, by rank and step; and the steps."""
    order = _in_order(rank, sync)
    if order is not None:
        rows, rank, sync = rows[order], rank[order], sync[order]
    fresh = _first_of_each(rank, sync)
    syncs, seen = np.unique(sync[fresh], return_counts=True)
    syncs = syncs[seen == ranks]
    if len(syncs) < len(seen):
        fresh &= np.isin(sync, syncs)
    return rows[fresh], syncs


def steps_of_all(rank: Ints, sync: Ints) -> Ints:
    """The steps that every rank has that has any, in their order."""
    rows = np.arange(len(rank))
    return _on_all_ranks(rows, rank, sync, len(np.unique(rank)))[1]


def _first_of_each(rank: Ints, sync: Ints) -> Bools:
    """A step may be there twice."""
    fresh = np.ones(len(rank), np.bool_)
    fresh[1:] = (rank[1:] != rank[:-1]) | (sync[1:] != sync[:-1])
    return fresh


def _in_order(first: Ints, second: Ints) -> Ints | None:
    """What sorts by the one and then by the other; None where they are sorted."""
    rises = (first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (second[1:] >= second[:-1]))
    return None if rises.all() else np.lexsort((second, first))


def over_others(cells: Floats) -> Floats:
    """Each rank's cells less the median of the other ranks'; 0 where a rank is alone."""
    return np.nan_to_num(cells - median_of_others(cells)) if len(cells) > 1 else 0.0 * cells
