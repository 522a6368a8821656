"""What is judged of a job's waiting, and how small a delay says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.delays import Delays, Holds
from ddpdoctor.analysis.hotlines import HotLines
from ddpdoctor.analysis.stepwise import Stepwise, over_others
from ddpdoctor.analysis.worksizes import work_sizes
from ddpdoctor.tracefile import Run

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

STEPS_NEEDED = 8  # fewer, and "always last" happens by chance: 2^-7 for two ranks
ABOVE_CHANCE = 0.5  # halfway from last by chance (1 / ranks) to last every time
SHARE_LEAST = 0.05  # of a step; a smaller gain would drown in step-to-step noise
LEAST_DELAY_MS = 1.0  # scheduling noise of a busy host; nobody trains for less


@dataclass(frozen=True)
class Job:
    """What is judged: arrays of a run, and how small a delay says nothing."""

    run: Run
    steps: Stepwise
    delays: Delays
    hot: HotLines

    @cached_property
    def step_ms(self) -> float:
        return float(self.steps.step_ms.mean())

    @cached_property
    def noise_ms(self) -> float:
        """By so much ranks differ in waiting for a CPU: one may arrive later for that alone."""
        return float(np.median(np.abs(over_others(self.steps.queued_ms))))

    @cached_property
    def least_ms(self) -> float:
        return max(LEAST_DELAY_MS, SHARE_LEAST * self.step_ms, self.noise_ms)

    @cached_property
    def sizes(self) -> dict[str, Floats]:
        return work_sizes(self.run, self.steps.ranks, self.steps.syncs)

    @cached_property
    def works(self) -> Bools:
        """Steps whose last rank was held up by nothing that was measured."""
        return np.asarray(self.delays.holds == Holds.WORK)


def is_often(share: float, among: int) -> bool:
    chance = 1 / among
    return share >= chance + ABOVE_CHANCE * (1 - chance)
