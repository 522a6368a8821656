"""Which rank holds the job up by own times alone: a cross-check that compares no clocks.

Between two reductions every rank goes through the same phases in the same order. The frontier
after a phase is the longest time that any rank has spent up to there; what each phase adds to
it is an exact split of the time that the job cannot be faster than.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.stepwise import Stepwise, over_others
from ddpdoctor.events import Phase

Floats = npt.NDArray[np.float64]

ORDER = (
    Phase.OPTIMIZER,
    Phase.BETWEEN,
    Phase.INPUT,
    Phase.FORWARD,
    Phase.BACKWARD,
)  # fmt: skip  from one reduction to the next


@dataclass(frozen=True)
class Frontier:
    """Mean milliseconds a step. `rank` has the longest own time in most steps, `share` of them."""

    rank: int
    share: float
    excess_ms: float  # its own time over the median of the others
    adds_ms: dict[Phase, float]  # by phase, in their order; together the mean of `path_ms`
    path_ms: float


def frontier(steps: Stepwise) -> Frontier | None:
    """None where there are fewer than two ranks or two steps."""
    if len(steps.ranks) < 2 or len(steps.syncs) < 2:
        return None
    own = np.stack([steps.of_phase(phase) for phase in ORDER])
    own = np.concatenate([own[:1, :, :-1], own[1:, :, 1:]])  # the optimizer came a step before
    reached = np.cumsum(own, axis=0)
    path = reached.max(axis=1)  # (phase, step)
    adds = np.diff(path, axis=0, prepend=0.0).mean(axis=1)
    first = reached[-1].argmax(axis=0)
    row = int(np.bincount(first, minlength=len(steps.ranks)).argmax())
    return Frontier(
        int(steps.ranks[row]),
        float((first == row).mean()),
        float(over_others(reached[-1])[row].mean()),
        {phase: float(ms) for phase, ms in zip(ORDER, adds, strict=True)},
        float(path[-1].mean()),
    )
