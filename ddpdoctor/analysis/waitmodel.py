"""Causes for which a job waits, each found once: what the checks on waiting put into words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from ddpdoctor.analysis.model import PhaseExcess
from ddpdoctor.analysis.shapes import Period, Rise
from ddpdoctor.analysis.worksizes import WorkFit

ORIGIN_COVERS = 0.80  # share of the lateness a phase must explain to be named
PHASES_EXPLAIN = 0.5  # with less of it in phases, the lateness is not of the rank's work
SAMPLES_AGREE = 5  # stack samples in excess before the second witness counts


class WaitKind(StrEnum):
    """What makes the job wait. Of two that fit, the earlier one is meant."""

    PAUSES = "garbage collection"
    QUOTA = "a CPU quota"
    QUEUE = "no CPU is free"
    HOST = "all ranks of a host are late"
    UNEVEN = "ranks are late in turn, as their batches are large"
    DRIFT = "it takes longer and longer, or since some step"
    RANK_0 = "rank 0 works alone between its steps"
    PERIODIC = "a stall at regular intervals"
    LATE = "one rank is always late"
    NOW_AND_THEN = "one rank is late at times, at no regular interval"
    IN_TURN = "ranks are late in turn, not known why"


class Origin(Enum):
    """What is known of where a lateness comes from."""

    SEEN = "a phase covers it, and stack samples agree"
    NAMED = "a phase covers it"
    SPREAD = "phases together explain it"
    UNKNOWN = "most of it is in no phase of the rank"


@dataclass(frozen=True)
class Lateness:
    """Of the culprits, over the steps in which the others waited for them. Milliseconds."""

    late_ms: float
    last_share: float  # of the counted steps
    excesses: tuple[PhaseExcess, ...]  # largest first

    @property
    def origin(self) -> Origin:
        top = self.excesses[0]
        if top.coverage >= ORIGIN_COVERS:
            return Origin.SEEN if top.samples >= SAMPLES_AGREE else Origin.NAMED
        explained_ms = sum(max(0.0, excess.excess_ms) for excess in self.excesses)
        return Origin.SPREAD if explained_ms >= PHASES_EXPLAIN * self.late_ms else Origin.UNKNOWN


@dataclass(frozen=True)
class Held:
    """Time for which ranks were held up, mean milliseconds a step of each rank."""

    ms_by_rank: dict[int, float]
    pauses: int = 0  # long ones, in counted steps
    longest_ms: float | None = None
    grows: bool = False  # the pauses become longer
    own_doing: bool = False  # the job's own ranks and threads hold the CPUs
    shares_cpus: tuple[int, ...] = ()  # ranks that may use only what other ranks use, too


@dataclass(frozen=True)
class Waiting:
    """One cause. `ranks` () means that no rank is to blame alone: none or all of them.

    `lost_ms` is what a step would gain without it, a mean over the counted steps.
    """

    kind: WaitKind
    ranks: tuple[int, ...]
    lost_ms: float
    step_ms: float
    noise_ms: float = 0.0  # by which ranks differ in waiting for a CPU: it may be that
    since: int | None = None  # the synchronised step from which on
    lateness: Lateness | None = None
    held: Held | None = None
    period: Period | None = None
    events: int = 0  # steps in which it happened, where these are few
    rise: Rise | None = None
    term: str | None = None  # of the step that rises: a phase, or transfer
    disturbed: bool = False  # ranks wait for a CPU more and more meanwhile
    fit: WorkFit | None = None
    size_ratio: float | None = None  # the rank's batches against the others'

    @property
    def share(self) -> float:
        return self.lost_ms / self.step_ms if self.step_ms > 0 else 0.0
