"""A run on disk: find it, read its rank files, check them. The only reader of the file format.

Reading uses `pread` and never mmap: a file that is still written may be truncated under a reader.
Files are foreign and hostile: sizes are bounded, nothing is unpickled, and a bad file is reported
with its name and place while the other ranks still load.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from ddpdoctor import events
from ddpdoctor.baseline import NetworkBaseline, host_labels, read_baseline
from ddpdoctor.columns import is_one_of
from ddpdoctor.deliveries import Evaluated, LoaderEpoch, RandomStates, StreamedSamples
from ddpdoctor.errors import BadTraceFile, NotARun
from ddpdoctor.events import (
    ClockOffset,
    DrawnIndices,
    End,
    GroupInfo,
    HotLine,
    Kind,
    LoaderInfo,
    Part,
    RankInfo,
    RunInfo,
    Site,
    Stall,
)
from ddpdoctor.factsfile import UNREADABLE, RecorderCost, read_facts
from ddpdoctor.laststacks import STACKS_SUFFIX, LastStacks, read_last_stacks
from ddpdoctor.launchfacts import Process
from ddpdoctor.localrecords import where_they_lie
from ddpdoctor.modelevents import ModelFacts
from ddpdoctor.plausible import plausible
from ddpdoctor.regular import opened
from ddpdoctor.runfolders import attempt_folder, folders_around, newest_run, rank_files
from ddpdoctor.schedule import Switch

Records = npt.NDArray[np.void]

MAX_REGION_BYTES: Final = 8 * 1024**3  # far above any budget; a lying header must not fill memory
MAX_OFFSET: Final = 2**48
READ_BYTES: Final = 1024 * 1024
_RANK_IN_NAME: Final = re.compile(r"rank([0-9]{1,7})\.ddt$")
READ_TRIES: Final = 10  # while a writer moves records, which takes it some 0.1 s
READ_AGAIN_S: Final = 0.1
_DTYPES: Final = {
    "<I": "<u4", "<B": "u1", "<H": "<u2", "<h": "<i2", "<i": "<i4", "<q": "<i8", "<Q": "<u8",
}  # fmt: skip


def _dtype(fields: tuple[tuple[str, str], ...]) -> np.dtype[np.void]:
    return np.dtype([(name, _DTYPES["<" + code]) for name, code in fields])


DETAIL_DTYPE: Final = _dtype(events.DETAIL_FIELDS)
STEP_DTYPE: Final = _dtype(events.STEP_FIELDS)


@dataclass(frozen=True)
class Region:
    """Where fixed-size records lie in a rank file, as its header says."""

    offset: int
    records: int


@dataclass(frozen=True)
class Header:
    """The JSON part of a rank file."""

    run: RunInfo
    rank: RankInfo
    ring: Region
    detail: Region
    steps: Region
    closed: bool
    stopped: str | None = None  # why recording ended before the training


@dataclass(frozen=True)
class RankTrace:
    """All that one rank recorded. `detail` has DETAIL_DTYPE, sorted by serial number.

    Of a file that was read it holds only what can be true (`ddpdoctor.plausible`).
    """

    path: Path
    info: RankInfo
    closed: bool
    detail: Records
    steps: Records
    groups: tuple[GroupInfo, ...] = ()
    sites: dict[int, Site] = field(default_factory=dict)
    hot_lines: tuple[HotLine, ...] = ()
    loaders: dict[int, LoaderInfo] = field(default_factory=dict)
    drawn: tuple[DrawnIndices, ...] = ()
    notes: tuple[str, ...] = ()
    cost: RecorderCost | None = None
    ddp_groups: tuple[GroupInfo, ...] = ()  # over which the wrapped models reduce
    clocks: tuple[ClockOffset, ...] = ()  # to rank 0's clock, where it is another one
    stall: Stall | None = None  # where it stands still
    end: End | None = None  # as it noted it; None: it ended without a word, or still runs
    stopped: str | None = None  # why recording ended before the training
    last_stacks: LastStacks = field(default_factory=LastStacks)
    switches: tuple[Switch, ...] = ()  # when it began and ceased to record; none: it always did
    parts: frozenset[Part] = frozenset({Part.RUN_QUEUE})  # of a step, that were counted
    names: dict[int, str] = field(default_factory=dict)  # of the user's spans
    model: ModelFacts = field(default_factory=ModelFacts)
    epochs: tuple[LoaderEpoch, ...] = ()
    streamed: tuple[StreamedSamples, ...] = ()
    random_states: tuple[RandomStates, ...] = ()
    evaluated: tuple[Evaluated, ...] = ()
    process: Process | None = None  # device, limits and network; the header has the rest

    @cached_property
    def kind(self) -> npt.NDArray[np.uint8]:
        """Of each record of `detail`; together, and not one in each record."""
        return np.ascontiguousarray(self.detail["kind"])

    def of_kind(self, *kinds: Kind) -> Records:
        """The records of these kinds."""
        return self.detail.take(np.flatnonzero(is_one_of(self.kind, *kinds)))

    def rows_of(self, kind: Kind, code: int) -> npt.NDArray[np.intp]:
        """Where the records of a kind and code are."""
        rows = np.flatnonzero(self.kind == int(kind))
        return np.asarray(rows[self.detail["code"][rows] == code])

    @property
    def came_through(self) -> bool:
        """Whether the rank came to its end: neither killed, nor ended by an error."""
        return self.closed and not (self.end is not None and self.end.failed)


@dataclass(frozen=True)
class Run:
    """One attempt of a recorded job: the ranks that could be read, and what could not."""

    path: Path
    info: RunInfo
    ranks: tuple[RankTrace, ...]
    problems: tuple[str, ...] = ()
    network: NetworkBaseline | None = None  # of a launch like this one


def load_run(path: str | os.PathLike[str] | None = None) -> Run:
    """Read a run: its folder, one attempt's folder, or by default the newest run here.

    Raises NotARun where there is nothing to read, BadTraceFile where no rank file is readable.
    """
    folder = attempt_folder(Path(path) if path is not None else newest_run())
    read: list[tuple[Header, RankTrace]] = []
    errors: list[BadTraceFile] = []
    for result in map(_read_or_error, rank_files(folder)):
        if isinstance(result, BadTraceFile):
            errors.append(result)
        else:
            read.append(result)
    if not read:
        raise errors[0] if errors else NotARun(f"{folder}: its rank files are gone")
    return _joined(folder, read, errors)


def _read_or_error(file: Path) -> tuple[Header, RankTrace] | BadTraceFile:
    try:
        return read_rank(file)
    except BadTraceFile as error:
        return error


def _joined(folder: Path, read: list[tuple[Header, RankTrace]], errors: list[BadTraceFile]) -> Run:
    """The ranks of one run, each once; the first file says which run it is."""
    info = read[0][0].run
    problems = [str(error) for error in errors]
    by_rank: dict[int, RankTrace] = {}
    for header, trace in read:
        if header.run != info:
            other = header.run.run_id
            problems.append(f"{trace.path}: belongs to another run ({other}), left out")
        elif trace.info.rank in by_rank:
            first = by_rank[trace.info.rank].path.name
            problems.append(f"{trace.path}: is of rank {trace.info.rank}, as {first} is; left out")
        else:
            by_rank[trace.info.rank] = trace
    problems += [line + where_they_lie(folder, by_rank) for line in _missing(by_rank, info, errors)]
    ranks = tuple(by_rank[rank] for rank in sorted(by_rank))
    return Run(folder, info, ranks, tuple(problems), _baseline(folder, info, ranks))


def _baseline(folder: Path, info: RunInfo, ranks: tuple[RankTrace, ...]) -> NetworkBaseline | None:
    """What was measured before; not where other ranks, hosts or another backend took part."""
    found = read_baseline(folders_around(folder))
    if found is None or len(ranks) != info.world_size:
        return None
    hosts = host_labels([(trace.info.host, trace.info.network_id) for trace in ranks])
    return found if found.is_of(info.backend, hosts) else None


def _missing(present: Collection[int], info: RunInfo, errors: list[BadTraceFile]) -> list[str]:
    bad = {int(match[1]) for error in errors if (match := _RANK_IN_NAME.search(error.path))}
    known = {*present, *(rank for rank in bad if rank < info.world_size)}
    count = info.world_size - len(known)
    if not count:
        return []
    first = islice((rank for rank in range(info.world_size) if rank not in known), 8)
    names = ", ".join(map(str, first)) + (", …" if count > 8 else "")
    return [
        f"no file of rank {names} ({len(present)} of {info.world_size} ranks read): "
        "waits for a rank that is missing cannot be seen"
    ]


def read_rank(path: Path) -> tuple[Header, RankTrace]:
    """Read one rank file and the facts beside it. Raises BadTraceFile."""
    try:
        with opened(path) as fd:
            header = _read_header(path, fd)
            detail, ring, steps = _read_regions(path, fd, header)
    except OSError as error:
        raise BadTraceFile(path, f"cannot be read ({error.strerror})") from error
    facts = read_facts(path.with_suffix(events.FACTS_SUFFIX))
    records = _merge(detail, ring)
    sound = plausible(records, header.rank.began_ns)
    if len(sound) < len(records):
        facts.notes.insert(0, _left_out(path, len(records) - len(sound), len(records)))
    if header.stopped is not None:
        facts.notes.append(f"recording ended before the training: {header.stopped}")
    trace = RankTrace(
        path,
        header.rank,
        header.closed,
        sound,
        steps[_row_is_used(steps)],
        groups=tuple(facts.groups),
        sites=facts.sites,
        hot_lines=facts.hot_lines,
        loaders=facts.loaders,
        drawn=tuple(facts.drawn.values()),
        notes=tuple(facts.notes),
        cost=facts.cost,
        ddp_groups=tuple(facts.ddp_groups),
        clocks=tuple(facts.clocks),
        stall=facts.stall,
        end=facts.end,
        stopped=header.stopped,
        last_stacks=read_last_stacks(path.with_suffix(STACKS_SUFFIX)),
        switches=tuple(facts.switches),
        parts=facts.parts,
        names=facts.names,
        model=facts.model,
        epochs=tuple(facts.epochs.values()),
        streamed=tuple(facts.streamed.values()),
        random_states=tuple(facts.random_states),
        evaluated=tuple(facts.evaluated),
        process=facts.process,
    )
    return header, trace


def _left_out(path: Path, count: int, total: int) -> str:
    return (
        f"{path.name}: {count} of {total} records cannot be true (the file is damaged) and "
        "were left out"
    )


def read_header(path: Path) -> Header:
    """Only the header of a rank file. Raises BadTraceFile, OSError."""
    with opened(path) as fd:
        return _read_header(path, fd)


def _read_header(path: Path, fd: int) -> Header:
    preamble = os.pread(fd, events.PREAMBLE.size, 0)
    if len(preamble) < events.PREAMBLE.size:
        raise BadTraceFile(path, f"ends after {len(preamble)} bytes, within its preamble")
    magic, schema, length = events.PREAMBLE.unpack(preamble)
    if magic != events.MAGIC:
        raise BadTraceFile(path, "is not a rank file of ddpdoctor")
    if schema > events.SCHEMA_VERSION:
        raise BadTraceFile(
            path,
            f"was written by a newer ddpdoctor (schema {schema}; this one reads up to "
            f"{events.SCHEMA_VERSION}): upgrade ddpdoctor here",
        )
    if length > events.HEADER_SPACE - events.PREAMBLE.size:
        raise BadTraceFile(path, f"its header claims {length} bytes, more than there is room for")
    raw = os.pread(fd, length, events.PREAMBLE.size)
    try:
        header = msgspec.json.decode(raw, type=Header)
    except UNREADABLE as error:
        place = f"bytes {events.PREAMBLE.size} to {events.PREAMBLE.size + length}"
        raise BadTraceFile(path, f"its header ({place}) cannot be read: {error}") from error
    rank, world_size = header.rank.rank, header.run.world_size
    if rank >= world_size:
        raise BadTraceFile(path, f"says that it is rank {rank} of {world_size} ranks")
    return header


def _read_regions(path: Path, fd: int, header: Header) -> tuple[Records, Records, Records]:
    """Detail, ring and step rows; read again if a writer beside us moved records meanwhile."""
    read = partial(_read_records, path, fd, header.closed)
    for _ in range(READ_TRIES):
        before = _generation(fd, header)
        regions = (
            read(header.detail, DETAIL_DTYPE),
            read(header.ring, DETAIL_DTYPE),
            read(header.steps, STEP_DTYPE),
        )
        if before % 2 == 0 and before == _generation(fd, header):
            break
        time.sleep(READ_AGAIN_S)
    return regions


def _generation(fd: int, header: Header) -> int:
    """How often the writer began or ended to move records; a closed file moves none."""
    if header.closed:
        return 0
    return int.from_bytes(os.pread(fd, 8, events.GENERATION_OFFSET), "little")


def _read_records(
    path: Path, fd: int, closed: bool, region: Region, dtype: np.dtype[np.void]
) -> Records:
    """Read a region up to its first block of zeros: records are added from its beginning on.

    A file that is still open has regions that it has not come to yet, beyond its end.
    """
    size = os.fstat(fd).st_size
    length = region.records * dtype.itemsize
    if not 0 <= region.offset <= MAX_OFFSET or not 0 <= length <= MAX_REGION_BYTES:
        raise BadTraceFile(path, f"its header claims an impossible region at {region.offset}")
    end = region.offset + length
    if length and end > size and closed:
        raise BadTraceFile(
            path, f"is truncated: it has {size} bytes, and its records go up to byte {end}"
        )
    count = max(0, min(end, size) - region.offset) // dtype.itemsize
    records = np.empty(count, dtype)
    raw = records.view(np.uint8)
    filled = 0
    while filled < len(raw):
        block = raw[filled : filled + READ_BYTES]
        got = os.preadv(fd, [block.data], region.offset + filled)
        if not block[:got].any():
            break
        filled += got
    return records[: filled // dtype.itemsize]


def _row_is_used(steps: Records) -> npt.NDArray[np.bool_]:
    return np.asarray(np.any([steps[name] > 0 for name in STEP_DTYPE.names or ()], axis=0))


def _merge(detail: Records, ring: Records) -> Records:
    """Detail and ring as one, each record once, by serial number."""
    detail, ring = _committed(detail), _committed(ring)
    if len(ring):
        ring = ring[~_among(ring["commit"], detail["commit"])]
    records = np.concatenate([detail, ring]) if len(ring) else detail
    commit = np.ascontiguousarray(records["commit"])
    if (commit[1:] > commit[:-1]).all():
        return records
    _, first = np.unique(commit, return_index=True)
    return records.take(first)


def _among(some: npt.NDArray[np.uint32], known: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """As np.isin, which would sort all of those known; they are mostly sorted."""
    known = np.ascontiguousarray(known)
    if not len(known) or (known[1:] <= known[:-1]).any():
        return np.isin(some, known)
    place = np.minimum(np.searchsorted(known, some), len(known) - 1)
    return np.asarray(known[place] == some)


def _committed(records: Records) -> Records:
    committed = records["commit"] > 0
    return records if committed.all() else records.take(np.flatnonzero(committed))
