"""What is recorded: record layout, phases, operations and the facts of a rank. No I/O.

The binary layout follows from SCHEMA_VERSION alone, never from what a file says of itself.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag, StrEnum
from typing import Annotated, Final

from msgspec import Meta

from ddpdoctor.cgroups import MemoryKills
from ddpdoctor.stackframes import Frame

SCHEMA_VERSION: Final = 1
FACTS_SUFFIX: Final = ".facts.jsonl"  # of the file beside a rank file
MAGIC: Final = b"DDPDOC\x00\x01"
PREAMBLE: Final = struct.Struct("<8sII")  # magic, schema version, length of the JSON header
HEADER_SPACE: Final = 64 * 1024  # bytes before the first region
GENERATION_OFFSET: Final = HEADER_SPACE - 8  # u64: odd while the writer moves records
PROGRESS: Final = struct.Struct("<QII")  # step under way, µs a step at best, control file heard
PROGRESS_OFFSET: Final = GENERATION_OFFSET - PROGRESS.size  # of a file that is still open

DETAIL_FIELDS: Final = (
    # (name, struct code, meaning)
    ("commit", "I"),  # serial number of the record, from 1; 0 while it is being written
    ("kind", "B"),  # Kind
    ("code", "B"),  # Phase of a span, Op of a collective
    ("flags", "B"),  # Flag
    ("depth", "B"),  # spans: how many spans are open around this one
    ("step", "I"),  # the rank's own count of steps
    ("sync", "I"),  # synchronised backwards completed before this record
    ("seq", "I"),  # collectives: position within the group
    ("group", "H"),  # index into the groups of the header's facts
    ("bucket", "h"),  # index of the DDP bucket, -1 where it is none or not known
    ("site", "I"),  # call site, index into the facts; 0 is "not known"; named: index of the name
    # root, source or destination (rank within the group), -1 for none; GC pause: generation
    ("peer", "i"),
    ("begin_ns", "q"),  # span: begin; collective: arrival
    ("issued_ns", "q"),  # collective: the call came back from the backend; span: 0
    ("end_ns", "q"),  # span: end; collective: completion; 0 while it is open
    # collective: bytes of its tensors on this rank; step: ns that the thread waited for a CPU;
    # part: its ns; named: ns, and `seq` their number, where many are added up
    ("nbytes", "Q"),
)
DETAIL_RECORD: Final = struct.Struct("<" + "".join(code for _, code in DETAIL_FIELDS))
BEGIN_OFFSET: Final = 32  # where begin_ns lies in a detail record; issued_ns, end_ns follow it
ISSUED_OFFSET: Final = 40
FLAGS_OFFSET: Final = 6  # where the flags lie in a detail record
MAX_STRIDE: Final = 2**31  # no run is so long that its detail is thinned out further
MOST_NAMES: Final = 256  # of the user's spans; what follows is recorded as "other names"
NAME_LENGTH: Final = 100  # characters of such a name that are kept
MAX_U32: Final = 2**32 - 1

STEP_FIELDS: Final = (
    ("step", "I"),
    ("input_us", "I"),
    ("forward_us", "I"),
    ("backward_us", "I"),
    ("blocked_us", "I"),  # the training thread stood in a collective: wait and transfer together
    ("optimizer_us", "I"),
    ("between_us", "I"),
    ("sync", "I"),
)
STEP_RECORD: Final = struct.Struct("<" + "".join(code for _, code in STEP_FIELDS))

# What a number read from a file may be: files are foreign, and what is larger would fill memory,
# overflow an int64 or make no sense. The recorder stays far below.
MOST_RANKS: Final = 1_000_000
MOST_NS: Final = 2**62  # of a clock; 146 years
MOST_CLOCK_ERROR_NS: Final = 60 * 10**9  # the recorder gives up on slower round trips
Count = Annotated[int, Meta(ge=0, le=2**53)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Nanoseconds = Annotated[int, Meta(ge=0, le=MOST_NS)]
RankNumber = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
WorldSize = Annotated[int, Meta(ge=1, le=MOST_RANKS)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(gt=0, le=1)]
SpanName = Annotated[str, Meta(max_length=NAME_LENGTH)]
SpanNumber = Annotated[int, Meta(ge=1, le=MOST_NAMES)]
Level = Annotated[float, Meta(ge=-1e300, le=1e300)]  # the difference of two is a number, too


class Kind(IntEnum):
    """What a detail record describes."""

    SPAN = 1  # a phase of the training thread
    COLLECTIVE = 2
    STEP = 3  # one whole step, begin to end
    PART = 4  # what a step spent across its phases, or one long pause within it
    NAMED = 5  # a span of the user's, named by `ddpdoctor.span`
    WAIT = 6  # a span in which the thread stands in `wait` for a collective issued before


class Part(IntEnum):
    """What may take a part of a step's time, whichever phase it falls into.

    They are "of which", and no terms of the step: they may overlap, and each is already in a phase.
    """

    RUN_QUEUE = 1  # ready to run, without a CPU; of the training thread, as most of these
    GC = 2  # garbage collection
    THROTTLED = 3  # of the run queue: held back by a CPU quota
    IO = 4  # waiting for storage
    IO_PRESSURE = 5  # some task of the group or host waited for storage, loader workers included
    H2D = 6  # copies from the host to the device
    GC_PAUSE = 7  # one garbage collection of a millisecond or more, which GC counts, too
    CPU_PRESSURE = 8  # some task of the group or host was ready and had no CPU, workers included

    @property
    def label(self) -> str:
        return self.name.lower()


class Phase(IntEnum):
    """Where the training thread is. WAIT and TRANSFER are derived by the analysis from BLOCKED."""

    BETWEEN = 0
    INPUT = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    BLOCKED = 5
    WAIT = 6
    TRANSFER = 7

    @property
    def label(self) -> str:
        return self.name.lower()


class Flag(IntFlag):
    """Facts of one record."""

    NONE = 0
    BLOCKING = 1  # the training thread stands in this collective until it completes
    NO_GRAD = 2  # an evaluation forward, or a batch drawn for one
    POINT_TO_POINT = 4  # send or recv: not numbered with the group's collectives
    BUCKET = 8  # issued by DDP's reducer inside backward
    SYNCED = 16  # a backward in which gradients were reduced
    FAILED = 32  # the backend raised
    UNTIMED = 64  # its end is that of the backward that waited for it, not its own completion
    SUMMED = 128  # named: many short spans of one step, added up


class Op(IntEnum):
    """Operations of a process group, in the spelling of torch.distributed."""

    OTHER = 0
    ALL_REDUCE = 1
    BROADCAST = 2
    ALL_GATHER = 3
    REDUCE_SCATTER = 4
    REDUCE = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9
    SEND = 10
    RECV = 11

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class GroupInfo:
    """One process group: its torch name and its members as global ranks."""

    name: str
    ranks: tuple[RankNumber, ...]


@dataclass(frozen=True)
class ClockOffset:
    """What to add to a rank's monotonic clock to have rank 0's, known to within the error.

    One measurement, at one time; `ddpdoctor.clocks` says what holds between several.
    """

    offset_ns: Annotated[int, Meta(ge=-MOST_NS, le=MOST_NS)]
    error_ns: Annotated[int, Meta(ge=0, le=MOST_CLOCK_ERROR_NS)]
    at_ns: Nanoseconds  # on the rank's own clock


@dataclass(frozen=True)
class Site:
    """A line of the user's code that issued a collective or began a phase."""

    file: str
    line: Int64
    function: str


@dataclass(frozen=True)
class HotLine:
    """How often the sampler saw the training thread of a rank at one line during a phase."""

    phase: Phase
    site: Site
    samples: Count


@dataclass(frozen=True)
class Held:
    """Hashes of a list in a dataset: of some of its items in order, and of all in any order."""

    in_order: Count
    in_any: Count | None  # None where there are too many


@dataclass(frozen=True)
class LoaderInfo:
    """One DataLoader that feeds training, in the order in which they were found to.

    One made anew where another was (the same line, class and length of the dataset, batch size)
    is taken for the same loader.
    """

    loader: Count
    dataset: str  # class name
    dataset_length: Count | None
    sampler: str  # class name of what draws the single indices
    sampler_replicas: Int64 | None  # of a DistributedSampler
    sampler_rank: Int64 | None
    replacement: bool  # the sampler draws with replacement, so that repeats are meant
    batch_size: Count | None
    drop_last: bool
    workers: Count
    site: Site | None  # where the script iterates it
    length: Count | None = None  # batches an epoch, as the loader itself says
    iterable: bool = False  # its dataset is a stream, without indices
    shuffle: bool | None = None  # as the sampler says; None where it does not say
    seed: Int64 | None = None  # of the sampler
    sampler_drop_last: bool | None = None
    joined: bool = False  # iterated within torch's `Join`, so that ranks may have fewer batches
    holdings: dict[str, Held] = field(default_factory=dict)  # by name of the dataset's attribute


INDEX_ITSELF: Final = -1  # fingerprint of a tensor that holds the sample's index alone


@dataclass(frozen=True)
class PendingCall:
    """A collective that a rank has issued and that has not completed."""

    group: Count  # as in the records
    seq: Count
    op: Op
    nbytes: Count
    seconds: Seconds  # since it was issued


@dataclass(frozen=True)
class GoneRank:
    """A rank of the same host that had ended without a word when another one stood still."""

    rank: RankNumber
    pid: Count
    signal: Count = 0  # that ended it, where its launcher had not yet taken note
    exit_status: Count = 0


@dataclass(frozen=True)
class Stall:
    """Where a rank stood when nothing had moved on it for some seconds."""

    phase: Phase
    site: Site | None  # of the training thread
    seconds: Seconds
    step: Count = 0
    threads: tuple[ThreadSites, ...] = ()
    pending: tuple[PendingCall, ...] = ()  # oldest first
    stack: tuple[Frame, ...] = ()  # of the training thread, innermost first, libraries too
    wchan: str = ""  # of the training thread: in what of the kernel it sleeps
    gone: tuple[GoneRank, ...] = ()
    memory_kills: tuple[MemoryKills, ...] = ()  # asked for only where a rank is gone


@dataclass(frozen=True)
class ThreadSites:
    """The user's lines on the stack of one Python thread, innermost first."""

    name: str
    sites: tuple[Site, ...]


class EndKind(StrEnum):
    """How a rank ended by itself. One that was killed, or called `os._exit`, notes nothing."""

    RETURNED = "returned"  # the script came to its end
    EXCEPTION = "exception"
    EXIT = "exit"  # `sys.exit`


@dataclass(frozen=True)
class End:
    """The end that a rank noted of itself, and where it was in its steps."""

    kind: EndKind
    at_ns: Nanoseconds  # on the rank's own clock
    step: Count
    phase: Phase
    error: str = ""  # type of the exception
    message: str = ""  # bounded; what looks like a credential is masked
    site: Site | None = None  # the user's line that raised
    called: str = ""  # what that line had called, where the exception came from within
    status: Int64 = 0  # of `sys.exit`

    @property
    def failed(self) -> bool:
        return self.kind is EndKind.EXCEPTION or self.status != 0


@dataclass(frozen=True)
class DrawnIndices:
    """What one loader delivered in one epoch, as a sample that is the same on every rank.

    An index is kept where its hash is below `threshold` (a share of the hash's range), so that
    ranks keep the same indices; 1.0 means that every index was kept. `contents` holds, for each
    kept index, fingerprints of the delivered sample, one a tensor of the batch, or None
    where the batch could not be taken apart. `levels` holds, for each kept index, the mean of the
    sample's first larger tensor. `repeats` counts draws of a kept index after its first.
    """

    loader: Count
    epoch: Count
    drawn: Count
    threshold: Share
    indices: tuple[Int64, ...]
    contents: tuple[tuple[int, ...] | None, ...]
    repeats: Count = 0
    levels: tuple[Level | None, ...] = ()


@dataclass(frozen=True)
class RankInfo:
    """The facts of one rank, written once into the header of its file."""

    rank: RankNumber
    world_size: WorldSize
    local_rank: Int64
    host: str
    pid: Count
    backend: str
    device: str
    clock_id: str  # boot id and time namespace: equal ids share one monotonic clock
    network_id: str  # boot id and network namespace: equal ids talk over loopback
    wall_minus_monotonic_ns: Annotated[int, Meta(ge=-MOST_NS, le=MOST_NS)]
    began_ns: Nanoseconds  # monotonic
    timer: str  # "host": stamps of the CPU; "cuda_event": of the GPU, brought onto its host's clock
    environment: dict[str, str] = field(default_factory=dict)  # allow-listed, values masked
    versions: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)  # file of the user's program: hash
    threads: Count | None = None  # intra-op threads
    cpus: Count | None = None  # CPUs that the process may use
    allowed_cpus: Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=1024)] = ()
    """Their numbers as first and last of each stretch; () where they were not recorded."""
    host_cpus: Count | None = None  # of the host, that are online


@dataclass(frozen=True)
class RunInfo:
    """What is common to the ranks of one attempt of a run."""

    run_id: str
    attempt: Count
    world_size: WorldSize
    backend: str
