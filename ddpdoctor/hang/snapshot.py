"""What was seen of one job on this host: its rank processes, their stacks and what moved. No I/O.

A snapshot is several looks in one: stacks and states are those of the last look, and `Movement`
says what changed since the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ddpdoctor.cgroups import MemoryKills
from ddpdoctor.hang.calls import Call, CallGroup, CallSite, Dumps, RankCalls
from ddpdoctor.hang.standing import Standing, standing
from ddpdoctor.stackframes import Frame

BUSY_SHARE = 0.10  # of one CPU: idle helper threads of a hung rank stay below 2 %
BUSY_S = 0.03  # three ticks, since a single tick may be rounding
IO_BYTES = 64 * 1024  # between looks: saving or reading a file, not a line of logging
IO_RATE = 32 * 1024  # bytes a second: long watched, a rank's own threads read as much from /proc


@dataclass(frozen=True)
class ThreadStack:
    """One Python thread, innermost frame first."""

    os_thread_id: int | None
    name: str
    frames: tuple[Frame, ...]
    active: bool = False
    owns_gil: bool = False


@dataclass(frozen=True)
class Movement:
    """What changed in a process between the first and the last look."""

    watched_s: float = 0.0
    cpu_s: float = 0.0
    io_bytes: int | None = None  # read and written by `read` and `write`; None: not readable
    socket_bytes: int | None = None  # that TCP connections moved; None: not known
    main_thread_woke: int | None = None  # times that the main thread gave up its CPU
    path_changed: bool = False  # the main thread's frames of the script
    stack_changed: bool = False  # all of its frames: waiting for a loader polls

    @property
    def cpu_share(self) -> float:
        return self.cpu_s / self.watched_s if self.watched_s else 0.0

    @property
    def is_at_work(self) -> bool:
        """Computes, reads or writes."""
        moved = max(self.io_bytes or 0, self.socket_bytes or 0)
        return self.is_busy or (moved >= IO_BYTES and moved >= IO_RATE * self.watched_s)

    @property
    def is_busy(self) -> bool:
        return self.cpu_share >= BUSY_SHARE and self.cpu_s >= BUSY_S


@dataclass(frozen=True)
class LastCollective:
    """The newest collective that a rank recorded in one group."""

    group: str
    members: tuple[int, ...]  # global ranks
    seq: int
    op: str
    pending: bool
    since_s: float | None = None


@dataclass(frozen=True)
class PendingEntry:
    """A collective that is not done, as torch's flight recorder in the rank itself tells it.

    `seq` counts from 0, as our records do. On gloo every state is `scheduled`.
    """

    group: str
    seq: int
    op: str
    sizes: tuple[tuple[int, ...], ...]  # of its first tensors
    state: str
    age_s: float


@dataclass(frozen=True)
class Answer:
    """What a rank's own flight recorder says: its newest calls, and those that are not done."""

    pending: tuple[PendingEntry, ...]
    calls: tuple[Call, ...]  # numbered from 0, too


@dataclass(frozen=True)
class LoaderWorker:
    """A child process that makes batches for a rank."""

    pid: int
    state: str
    stack: ThreadStack | None = None

    @property
    def is_in_fork(self) -> bool:
        """Whether it never came out of `fork`: a thread of the rank held a lock at that moment."""
        frame = self.stack.frames[0] if self.stack and self.stack.frames else None
        return frame is not None and frame.file.endswith("multiprocessing/popen_fork.py")


@dataclass(frozen=True)
class Unsent:
    """Bytes of a TCP connection that its other side has not acknowledged."""

    peer: str  # address:port
    nbytes: int


@dataclass(frozen=True)
class RankProcess:
    """One living rank. `rank` is None where nothing tells its number."""

    rank: int | None
    pid: int
    state: str = "S"  # letter of /proc/PID/stat; "" where only a record tells of it
    wchan: str = ""
    uid: int = 0
    threads: tuple[ThreadStack, ...] = ()
    refusal: str | None = None  # why the stacks could not be read
    movement: Movement = Movement()
    helpers: Movement = Movement()  # of its child processes, added up
    workers: tuple[LoaderWorker, ...] = ()
    on_gpu: bool = False
    unsent: tuple[Unsent, ...] = ()  # at the last look, most bytes first
    collectives: tuple[LastCollective, ...] = ()
    in_band: tuple[PendingEntry, ...] | None = None  # None: the rank could not be asked
    calls: tuple[Call, ...] = ()  # by the same answer, oldest first
    arguments: tuple[tuple[str, int], ...] = ()  # of torch's call that it is in, if asked for
    started: tuple[tuple[str, str], ...] = ()  # with which script and steering variables
    settings: tuple[tuple[str, str], ...] = ()  # arguments of its first DDP model, if recorded
    native: tuple[str, ...] = ()  # C functions below its Python, asked for where it keeps the GIL

    @property
    def main_thread(self) -> ThreadStack | None:
        return next((t for t in self.threads if t.os_thread_id == self.pid), None)

    @property
    def is_stopped(self) -> bool:
        return self.state in ("T", "t")


@dataclass(frozen=True)
class DeadRank:
    """A rank that should run on this host and does not."""

    rank: int | None
    pid: int | None = None
    signal: int | None = None  # that ended it, where the parent has not yet taken note
    exit_status: int | None = None
    said: str = ""  # in torchrun's error file
    site: CallSite | None = None  # where it was raised, by the same file

    @property
    def failed(self) -> bool:
        return bool(self.signal or self.exit_status or self.said)


@dataclass(frozen=True)
class Job:
    """What tells one job from another on the same host."""

    master: str  # address:port, "" where the environment does not say
    run_id: str
    agent_pid: int  # the launcher's process
    world_size: int | None
    masters: tuple[tuple[int, str], ...] = ()  # by rank, where they do not name the same one

    @property
    def name(self) -> str:
        known = [self.master, "" if self.run_id == "none" else self.run_id]
        return " ".join([*filter(None, known), f"(launcher pid {self.agent_pid})"])


@dataclass(frozen=True)
class WaitingLauncher:
    """A launcher that waits for those of other nodes and has started no rank."""

    pid: int
    function: str  # of torch's agent, in which it stands
    nodes: str = ""  # as its command line says
    endpoint: str = ""


@dataclass(frozen=True)
class HangSnapshot:
    """All that was seen of one job on this host."""

    job: Job
    host: str
    ranks: tuple[RankProcess, ...]
    dead: tuple[DeadRank, ...] = ()
    watched_s: float = 0.0
    ended: tuple[int | None, ...] = ()  # ranks that went while they were looked at
    launcher: WaitingLauncher | None = None  # then there are no ranks
    memory_kills: tuple[MemoryKills, ...] = ()  # asked for only where a process is gone

    @cached_property
    def told(self) -> Standing | None:
        """Who waits for whom by the ranks' own flight recorders, if all ranks of the job answered.

        Stacks know better what a rank does; this knows whether the calls belong together.
        """
        named = [rank for rank in self.ranks if rank.rank is not None and rank.calls]
        if len(named) < 2 or len(named) < len(self.ranks) or self.dead or self.elsewhere:
            return None
        return standing(Dumps(tuple(
            RankCalls(rank.rank, rank.calls, tuple(
                CallGroup(last.group, "", last.members) for last in rank.collectives
            ))
            for rank in named if rank.rank is not None
        )))  # fmt: skip

    @property
    def elsewhere(self) -> int:
        """How many ranks of the job run on other hosts."""
        if self.job.world_size is None:
            return 0
        here = len(self.ranks) + len(self.dead) + len(self.ended)
        return max(0, self.job.world_size - here)
