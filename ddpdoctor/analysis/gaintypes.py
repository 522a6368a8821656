"""What a fix would gain, and what the calls of a step cost: the types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddpdoctor.events import Op, Site

ACCUMULATED: Final = 4  # micro-batches a reduction, for the gain of accumulation
FASTER: Final = 2.0  # times the bandwidth, for the gain of a faster link


class Fix(StrEnum):
    """What may be changed."""

    BUCKET_SIZE = "bucket size"
    ACCUMULATE = "accumulation"
    COMPRESS = "compression"
    NO_EXTRAS = "no extra collectives"
    FASTER_LINK = "faster link"


@dataclass(frozen=True)
class Gain:
    """A step, or a micro-batch under accumulation, before and after a fix; `error_ms` bounds
    `after_ms` on both sides. `setting` is what the fix sets."""

    fix: Fix
    setting: str
    step_ms: float
    after_ms: float
    error_ms: float

    @property
    def saved_ms(self) -> float:
        return self.step_ms - self.after_ms

    @property
    def is_sure(self) -> bool:
        """Whether it saves more than it may be wrong by."""
        return self.saved_ms > self.error_ms

    def __str__(self) -> str:
        return (
            f"a step would take {self.after_ms:.1f} ms (± {self.error_ms:.1f}) "
            f"instead of {self.step_ms:.1f} ms"
        )


@dataclass(frozen=True)
class Gains:
    """By a replay of the recorded steps; where there is none, the reason.

    `self_error` is how far the replay with unchanged settings is from the record, as a share.
    """

    gains: tuple[Gain, ...] = ()
    reason: str | None = None
    self_error: float | None = None
    ideal_ms: float | None = None  # a step in which all transfers hide behind compute

    def of(self, fix: Fix) -> Gain | None:
        return next((gain for gain in self.gains if gain.fix is fix), None)


NO_GAINS: Final = Gains(reason="nothing was replayed")


@dataclass(frozen=True)
class ExtraCall:
    """Calls beside the buckets that hold the training thread up, by line and operation.

    Milliseconds and calls a step. `transfer_ms` has no waiting in it; `saved_ms` is by the replay
    of the step without them, None where it cannot be replayed.
    """

    op: Op
    site: Site | None
    buffers: bool  # DDP's broadcast of buffers before a forward
    calls: float
    nbytes: float
    transfer_ms: float
    wait_ms: float
    saved_ms: float | None = None
    error_ms: float | None = None


@dataclass(frozen=True)
class BucketUse:
    """The buckets of a step: their sizes in launch order, and how they lie in backward.

    `ready_share` says for each how far the backward was, 0 to 1, when all ranks had it.
    """

    nbytes: tuple[float, ...]
    ready_share: tuple[float, ...]
    backward_ms: float
    exposed_ms: float  # of the end of the step, after all compute
    transfer_ms: float  # in which at least one bucket was under way
    last_ms: float  # of that, the last bucket alone


@dataclass(frozen=True)
class StepCalls:
    """What the calls of a step are and cost."""

    extras: tuple[ExtraCall, ...]
    buckets: BucketUse | None
    search_bytes: float = 0.0  # of the map that find_unused_parameters reduces
