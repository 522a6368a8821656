"""How often and how much a rank arrives last, and which phases its lateness comes from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.delays import Delays, delays_in
from ddpdoctor.analysis.hotlines import HotLines
from ddpdoctor.analysis.model import LateArrivals, PhaseExcess, StepRange
from ddpdoctor.analysis.stepwise import LOCAL_PHASES, over_others
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

__all__ = [
    "LOCAL_PHASES",
    "excesses",
    "late_arrivals",
    "late_arrivals_of",
    "shares_of",
]


def late_arrivals(run: Run, tables: Tables, steps: StepRange) -> dict[int, LateArrivals]:
    """Per rank; empty where a job has one rank or no collective that all of them reached."""
    delays = delays_in(tables, steps)
    return late_arrivals_of(delays, HotLines.of(run)) if delays is not None else {}


def late_arrivals_of(
    delays: Delays, hot: HotLines, counts: Bools | None = None
) -> dict[int, LateArrivals]:
    """Per rank; only the steps that count may have a last rank, all where not said."""
    every = np.ones(len(delays.last), np.bool_)
    more_queued = over_others(delays.steps.queued_ms)
    return {
        int(rank): _of_rank(row, delays, counts if counts is not None else every, more_queued, hot)
        for row, rank in enumerate(delays.steps.ranks)
    }


def _of_rank(
    row: int, delays: Delays, counts: Bools, more_queued: Floats, hot: HotLines
) -> LateArrivals:
    was_last = (delays.last == row) & counts
    caused = np.where(was_last, delays.caused_ms, 0.0)
    late_ms = _mean(delays.lateness_ms[row, was_last])
    return LateArrivals(
        float(was_last.mean()),
        float(caused.mean()),
        float(np.median(caused)),
        late_ms,
        max(0.0, _mean(more_queued[row, was_last])),
        excesses(delays, row, was_last, late_ms, hot),
    )


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else 0.0


def excesses(
    delays: Delays, row: int, when: Bools, late_ms: float, hot: HotLines
) -> tuple[PhaseExcess, ...]:
    """Each phase's share of a lateness of one rank in these steps, largest first."""
    more = delays.more_ms[:, row, when].mean(axis=1) if when.any() else np.zeros(len(LOCAL_PHASES))
    return shares_of(more, (int(delays.steps.ranks[row]),), late_ms, hot)


def shares_of(
    more_ms: Floats, ranks: Sequence[int], late_ms: float, hot: HotLines
) -> tuple[PhaseExcess, ...]:
    """From what each of LOCAL_PHASES takes longer on these ranks than on the others."""
    found = []
    for phase, excess_ms in zip(LOCAL_PHASES, more_ms.tolist(), strict=True):
        samples, where = hot.beyond_others(phase, ranks)
        coverage = excess_ms / late_ms if late_ms > 0 else 0.0
        found.append(PhaseExcess(phase, excess_ms, coverage, samples, where))
    return tuple(sorted(found, key=lambda excess: -excess.excess_ms))
