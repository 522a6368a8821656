"""Counted steps as arrays over ranks and steps: own time by phase, and what held a rank up.

Nothing here compares the clocks of two ranks, so all of it holds where they cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

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
    steps = steps[steps["sync"].between(counted.first_sync, counted.last_sync)]
    steps = steps.drop_duplicates(["rank", "sync"])
    ranks = np.unique(tables.steps["rank"].to_numpy(np.int64))
    seen = steps.groupby("sync")["rank"].nunique()
    syncs = np.sort(seen.index[seen == len(ranks)].to_numpy(np.int64))
    steps = steps[steps["sync"].isin(syncs)].sort_values(["rank", "sync"])
    shape = (len(ranks), len(syncs))

    def column(name: str) -> Floats:
        values = steps[f"{name}_ns"].to_numpy(np.float64).reshape(shape)
        return np.where(values < 0, np.nan, values / _NS_PER_MS)

    return Stepwise(
        ranks,
        syncs,
        _begins(steps, ranks),
        column("step"),
        np.stack([column(phase.label) for phase in LOCAL_PHASES]),
        column("transfer"),
        column("run_queue"),
        column("throttled"),
        column("gc"),
    )


def _begins(steps: pd.DataFrame, ranks: Ints) -> Floats:
    first = steps[steps["rank"] == ranks[0]] if len(ranks) else steps
    return first["begin_ns"].to_numpy(np.float64) / _NS_PER_MS


def over_others(cells: Floats) -> Floats:
    """Each rank's cells less the median of the other ranks'; 0 where a rank is alone."""
    return np.nan_to_num(cells - median_of_others(cells)) if len(cells) > 1 else 0.0 * cells
