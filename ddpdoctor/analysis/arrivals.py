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

Ints = npt.NDArray[np.int64]
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
    more_queued = over_others(delays.steps.queued_ms)
    steps = np.arange(len(delays.last)) if counts is None else np.flatnonzero(counts)
    order = steps[np.argsort(delays.last[steps], kind="stable")]
    rows = np.arange(len(delays.steps.ranks) + 1)
    begins = np.searchsorted(delays.last[order], rows).tolist()
    return {
        int(rank): _of_rank(row, delays, order[begins[row] : begins[row + 1]], more_queued, hot)
        for row, rank in enumerate(delays.steps.ranks)
    }


def _of_rank(
    row: int, delays: Delays, was_last: Ints, more_queued: Floats, hot: HotLines
) -> LateArrivals:
    """`was_last`: the steps in which it was."""
    steps = len(delays.last)
    caused = delays.caused_ms[was_last]
    late_ms = _mean(delays.lateness_ms[row, was_last])
    return LateArrivals(
        len(was_last) / steps,
        float(caused.sum()) / steps,
        _median_of(caused, steps),
        late_ms,
        max(0.0, _mean(more_queued[row, was_last])),
        excesses(delays, row, was_last, late_ms, hot),
    )


def _median_of(values: Floats, count: int) -> float:
    """Of so many numbers, of which these are all that are not 0."""
    if 2 * len(values) < count:
        return 0.0
    return float(np.median(np.append(values, np.zeros(count - len(values)))))


def _mean(values: Floats) -> float:
    return float(values.mean()) if values.size else 0.0


def excesses(
    delays: Delays, row: int, when: Bools | Ints, late_ms: float, hot: HotLines
) -> tuple[PhaseExcess, ...]:
    """Each phase's share of a lateness of one rank in these steps, largest first."""
    more = delays.more_ms[:, row, when]
    more = more.mean(axis=1) if more.size else np.zeros(len(LOCAL_PHASES))
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
