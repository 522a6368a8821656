"""What the log of a job tells of its end: who failed with what, who waited in vain. No I/O.

The last lines of a log are the survivors': what follows from another rank's end is told apart from
what came first, by the words in which torch, gloo and NCCL say that a peer is gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from ddpdoctor.hang.calls import CallSite

SIGABRT: Final = 6
SIGTERM: Final = 15
_CONSEQUENCE: Final = re.compile(
    r"(?i)connection (was likely )?closed|connection reset|broken pipe|got 0 bytes|"
    r"remote process exited|communicator was aborted|socket timeout|timed ?out|timeout|"
    r"process group watchdog thread terminated|pair closure|monitoredBarrier|"
    r"mismatch between collectives"
)
_TORCHS: Final = frozenset(  # types in which torch says so; others are the script's own
    {"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"}
)
_MEMORY: Final = re.compile(r"(?i)out of memory|can't allocate memory|MemoryError|oom.?kill")
_DEVICE_MEMORY: Final = re.compile(r"(?i)(CUDA|HIP|XPU) out of memory|OutOfMemoryError")
_GAVE_UP: Final = re.compile(r"(?i)timed ?out|timeout")
NOT_TOLD: Final = -1  # the rank of an error of which the log does not say whose it is
LEAST_APART_S: Final = 1.0  # of times that two logs tell: clocks of hosts differ, and seconds round
_LOADER: Final = re.compile(r"DataLoader worker \(pid.*?\) is killed by signal|Bus error")


@dataclass(frozen=True)
class Failure:
    """How one rank ended. `order` grows with time within one log; `log` is the number of that.

    `when` is in seconds of the clock that `clock` names, and can be compared with that one only.
    """

    rank: int
    order: float
    status: int | None = None  # of the process; negative: the signal that ended it
    error: str = ""
    message: str = ""
    site: CallSite | None = None
    pid: int | None = None
    at: str = ""  # wall clock as the log says it
    is_root: bool = False  # the launcher saw this one first
    call: str = ""  # torch's function that the line at `site` had called
    log: int = 0
    when: float | None = None
    clock: str = ""

    @property
    def signal(self) -> int | None:
        return -self.status if self.status is not None and self.status < 0 else None

    @property
    def is_consequence(self) -> bool:
        """Of another rank's end, or of the launcher's that ends all of them."""
        if self.error:
            return self.error in _TORCHS and bool(_CONSEQUENCE.search(self.message))
        return self.signal == SIGTERM

    @property
    def gave_up(self) -> bool:
        """Whether it waited in a collective until its timeout."""
        return self.is_consequence and bool(_GAVE_UP.search(self.message))

    @property
    def has_cause(self) -> bool:
        """Not only an exit status, or the signal by which watchdogs end their own process."""
        return bool(self.error) or self.signal not in (None, SIGTERM, SIGABRT)

    @property
    def is_memory(self) -> bool:
        return bool(_MEMORY.search(f"{self.error}: {self.message}"))

    @property
    def is_device_memory(self) -> bool:
        return bool(_DEVICE_MEMORY.search(f"{self.error}: {self.message}"))

    @property
    def is_loader(self) -> bool:
        return bool(_LOADER.search(self.message))


@dataclass(frozen=True)
class TimedOut:
    """A collective that a rank's watchdog gave up, as that rank called it."""

    rank: int
    seq: int | None  # of its group
    op: str
    size: int | None = None  # elements of its input
    after_ms: int | None = None
    group: str = ""

    @property
    def text(self) -> str:
        number = "" if self.seq is None else f" (number {self.seq})"
        size = "" if self.size is None else f" of {self.size} elements"
        return f"{self.op}{number}{size}"


@dataclass(frozen=True)
class Enqueued:
    """The newest call of a rank's group when its watchdog gave up."""

    rank: int
    enqueued: int
    completed: int
    group: str = ""


@dataclass(frozen=True)
class Mismatched:
    """Two ranks in different collectives, as TORCH_DISTRIBUTED_DEBUG=DETAIL says it."""

    rank: int
    call: str
    other: int
    other_call: str


@dataclass(frozen=True)
class JobLog:
    """All that was understood of the logs and error files of one job."""

    sources: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()  # one a rank
    unnamed: tuple[Failure, ...] = ()  # errors of which it does not say whose they are
    timed_out: tuple[TimedOut, ...] = ()
    enqueued: tuple[Enqueued, ...] = ()
    mismatched: tuple[Mismatched, ...] = ()
    absent: tuple[int, ...] = ()  # that a monitored barrier waited for
    killed_for_memory: tuple[str, ...] = ()  # lines of the kernel or of Slurm
    taken_port: int | None = None
    joined: tuple[int, int] | None = None  # k of n ranks met
    hung_up: bool = False  # the launcher got SIGHUP
    world_size: int | None = None
    problems: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def first(self) -> tuple[Failure, ...]:
        """The ranks whose end follows from no other's; those that ended alike go together."""
        own = self._own
        return tuple(each for each in own if _alike(each, own[0])) if own else ()

    @cached_property
    def beside(self) -> tuple[Failure, ...]:
        """Ends like the first of which nothing tells that they came later."""
        return tuple(
            each
            for each in self._own
            if each not in self.first
            and (each.has_cause, each.is_root) == (self.first[0].has_cause, self.first[0].is_root)
            and not _is_known_order(self.first[0], each)
        )

    @cached_property
    def _own(self) -> list[Failure]:
        own = [each for each in self.failures if not each.is_consequence]
        timed = len({each.clock for each in own if each.when is not None}) == 1

        def place(each: Failure) -> tuple[bool, bool, float, float]:
            when = each.when if timed and each.when is not None else 0.0
            return (not each.has_cause, not each.is_root, when, each.order)

        return sorted(own, key=place)

    @cached_property
    def own_unnamed(self) -> tuple[Failure, ...]:
        """Errors that follow from no other rank's end, and of which the rank is not told."""
        return tuple(each for each in self.unnamed if not each.is_consequence)

    @cached_property
    def lost(self) -> tuple[Failure, ...]:
        """Where ranks stood that gave up waiting, or lost the others; () if an end explains it."""
        if self.first or self.own_unnamed:
            return ()
        everyone = (*self.failures, *self.unnamed)
        return tuple(each for each in everyone if each.error and each.is_consequence and each.site)

    @property
    def victims(self) -> tuple[int, ...]:
        culprits = {each.rank for each in (*self.first, *self.beside)}
        return tuple(sorted({each.rank for each in self.failures} - culprits))

    @property
    def says_nothing(self) -> bool:
        return not (
            self.failures or self.unnamed or self.timed_out or self.mismatched or self.absent
            or self.hung_up or self.killed_for_memory or self.taken_port or self.joined
        )  # fmt: skip

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """All ranks of the job, as far as known: by its size, else those that the log names."""
        named = {each.rank for each in self.failures} | {each.rank for each in self.timed_out}
        named |= {each.rank for each in self.enqueued}
        count = max(self.world_size or 0, max(named, default=-1) + 1)
        return tuple(range(count))


def _alike(one: Failure, other: Failure) -> bool:
    if one is other:
        return True
    if not one.error or not other.error:
        return False  # ended by signals: each by itself
    return (one.error, one.site, one.message) == (other.error, other.site, other.message)


def _is_known_order(one: Failure, other: Failure) -> bool:
    """Whether they stand in one log, or both tell the time by one kind of clock."""
    if one.log == other.log:
        return True
    if one.when is None or other.when is None or one.clock != other.clock:
        return False
    return abs(one.when - other.when) >= LEAST_APART_S
