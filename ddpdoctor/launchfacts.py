"""What is true of a launch before its first step: each process, its node, how they met. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ddpdoctor.baseline import NetworkBaseline
    from ddpdoctor.events import RankInfo

MOST_RANKS: Final = 1_000_000  # as in a rank file; a larger number is none
UNLIMITED: Final = 2**53  # of a limit that is none
MOST_BYTES: Final = 64 * 1024  # of one process's facts in the job's store


@dataclass(frozen=True)
class Limits:
    """What a process may use; None where the system does not tell."""

    open_files: int | None = None
    processes: int | None = None  # and threads, of this user or container
    locked_memory_bytes: int | None = None
    shm_bytes: int | None = None  # /dev/shm
    shm_free_bytes: int | None = None
    memory_bytes: int | None = None  # of the cgroup
    host_cpus: int | None = None  # whether or not this process may use them
    cpu_quota: float | None = None  # CPUs' worth of time, ditto


class InterfaceKind(StrEnum):
    CARD = "card"
    LOOPBACK = "loopback"
    BRIDGE = "bridge"  # of containers or virtual machines: the same address on every host


@dataclass(frozen=True)
class Interface:
    """One network interface. `address` is its first IPv4 one, else IPv6, "" without any."""

    name: str
    address: str
    up: bool
    kind: InterfaceKind = InterfaceKind.CARD
    speed_mbit: int | None = None  # as its driver says


@dataclass(frozen=True)
class Network:
    """The interfaces of a host, and the address to which its own name resolves."""

    interfaces: tuple[Interface, ...] = ()
    own_address: str | None = None
    infiniband: bool = False


@dataclass(frozen=True)
class Device:
    """A GPU that a process sees."""

    uuid: str
    name: str = ""


@dataclass(frozen=True)
class Unsynced:
    """Optimizer steps of a process that made no DDP model, beside its collectives."""

    steps: int
    without_collective: int  # since the step before


@dataclass(frozen=True)
class PortHolder:
    """Who listens on a port; pid and command are None for a process of another user."""

    port: int
    pid: int | None = None
    command: str | None = None


class Outcome(StrEnum):
    """What became of a call of init_process_group."""

    WAITS = "waits"  # it has not come back
    JOINED = "joined"
    FAILED = "failed"
    ENDED = "ended"  # the process was ended from outside before it came back


@dataclass(frozen=True)
class Joining:
    """A call of init_process_group, as its process noted it; rank and world size are as asked.

    `place` tells calls that should meet from others: "host:port", or the file or store.
    """

    place: str
    outcome: Outcome = Outcome.WAITS
    began_s: float = 0.0  # of the wall clock
    seconds: float | None = None  # that it took; None while it has not come back
    waited_s: float = 0.0  # that it took at least, where it has not come back
    error: str = ""  # type of the exception
    message: str = ""  # bounded and masked
    holder: PortHolder | None = None  # who listens at the place, where it is no process of the job
    again: bool = False  # the process has joined at this place before
    tcp: bool = False  # by an init_method of its own, and not by MASTER_ADDR and MASTER_PORT

    def is_over_at(self, time_s: float) -> bool:
        """Whether the call had come back by then."""
        return self.seconds is not None and self.began_s + self.seconds < time_s


@dataclass(frozen=True)
class Process:
    """One process of a launch. `rank` is None where it is no part of a job."""

    host: str
    pid: int
    network_id: str  # boot id and network namespace: equal ids talk over loopback
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    backend: str = ""
    environment: dict[str, str] = field(default_factory=dict)  # allow-listed, values masked
    versions: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)  # file of the program: hash
    command: tuple[str, ...] = ()  # values that may be credentials masked
    devices: tuple[Device, ...] = ()  # those visible, in the order of their index
    device: int | None = None  # the index that it uses; None: not known yet
    threads: int | None = None  # intra-op threads
    cpus: int | None = None  # that it may use
    affinity: tuple[int, ...] = ()  # their numbers, as far as known
    limits: Limits = Limits()
    network: Network = Network()
    problems: tuple[str, ...] = ()  # launch variables that cannot be right
    unsynced: Unsynced | None = None
    unit: str = "rank"  # what the ranks of this meeting are: "node" where one comes for each
    joining: Joining | None = None
    loader_workers: int | None = None  # of its DataLoaders; None: not known yet

    @property
    def started(self) -> int | None:
        """WORLD_SIZE as the launcher set it; a script may ask for another one."""
        text = self.environment.get("WORLD_SIZE", "")
        is_number = text.isascii() and text.isdecimal() and len(text) < 8
        return int(text) if is_number else None

    @property
    def label(self) -> str:
        """`rank 3 on node1`, or the host where it has no rank."""
        return self.host if self.rank is None else f"{self.unit} {self.rank} on {self.host}"


class Reach(StrEnum):
    """How far a process came towards the rendezvous."""

    REACHED = "reached"
    REFUSED = "refused"  # the host answers, and nobody listens there
    NO_ANSWER = "no answer"
    NO_NAME = "no such name"
    TAKEN = "taken"  # somebody else listens on the port that rank 0 needs
    FOREIGN = "foreign"  # what listens there is no store of this job


@dataclass(frozen=True)
class Rendezvous:
    """The address at which the ranks meet, and what became of it for one process."""

    address: str
    port: int
    reach: Reach
    resolved: tuple[str, ...] = ()
    holder: PortHolder | None = None
    waited_s: float = 0.0


@dataclass(frozen=True)
class LaunchFacts:
    """All that is known of one launch. Without a rendezvous nobody tried to meet."""

    processes: tuple[Process, ...]
    world_size: int | None = None
    rendezvous: Rendezvous | None = None
    nodes: tuple[str, ...] = ()  # host names that the scheduler gave to the job
    port: PortHolder | None = None  # looked at before launching: who holds it
    unreadable: int = 0  # reports of others that could not be read
    network: NetworkBaseline | None = None  # where it was measured

    @property
    def is_noted(self) -> bool:
        """Whether these are the ranks' own calls of init_process_group, and no test of ours."""
        return any(process.joining is not None for process in self.processes)

    @property
    def apart(self) -> tuple[Process, ...]:
        """Those whose call of init_process_group has not come back well."""
        return tuple(
            process
            for process in self.processes
            if process.joining is not None and process.joining.outcome is not Outcome.JOINED
        )

    @property
    def meets_beside_agent(self) -> bool:
        """Whether ranks under torchrun were told to meet where its agent does not listen.

        The agent has a store for them, and then rank 0 listens nowhere.
        """
        return any(
            process.joining is not None
            and process.joining.tcp
            and process.environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            and process.joining.place.rpartition(":")[2] != process.environment.get("MASTER_PORT")
            for process in self.apart
        )

    @property
    def unit(self) -> str:
        return self.processes[0].unit if self.processes else "rank"

    @property
    def ranks(self) -> dict[int, list[Process]]:
        """The processes by their rank, where they have one."""
        found: dict[int, list[Process]] = defaultdict(list)
        for process in self.processes:
            if process.rank is not None:
                found[process.rank].append(process)
        return dict(sorted(found.items()))

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that should be there and did not report."""
        present = self.ranks
        return tuple(rank for rank in range(self.world_size or 0) if rank not in present)

    @property
    def by_host(self) -> dict[tuple[str, str], list[Process]]:
        """The processes of each host; network namespaces of one kernel count as hosts."""
        found: dict[tuple[str, str], list[Process]] = defaultdict(list)
        for process in self.processes:
            found[process.host, process.network_id].append(process)
        return dict(found)

    @property
    def spans_hosts(self) -> bool:
        """Whether ranks of several hosts take part; while some are missing, what is expected."""
        if len(self.by_host) > 1 or not self.missing:
            return len(self.by_host) > 1
        return len(self.nodes) > 1 or any(
            (process.local_world_size or process.world_size or 1) < _expected(process)
            for process in self.processes
        )


def _expected(process: Process) -> int:
    """How many ranks the launcher starts; a script may ask for a number of its own."""
    own = process.started if process.joining is not None else process.world_size
    return own or 1


def process_of(info: RankInfo) -> Process:
    """What the header of a rank file says of its process."""
    return Process(
        host=info.host,
        pid=info.pid,
        network_id=info.network_id,
        rank=info.rank,
        world_size=info.world_size,
        local_rank=max(0, info.local_rank),
        backend=info.backend,
        environment=info.environment,
        versions=info.versions,
        code=info.code,
        threads=info.threads,
        cpus=info.cpus,
    )


def hosts_of(processes: Iterable[Process]) -> tuple[str, ...]:
    """Their hosts, each once."""
    return tuple(dict.fromkeys(process.host for process in processes))
