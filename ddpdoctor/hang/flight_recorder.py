"""torch's flight recorder, as JSON or as a pickle: what a rank called. Foreign, so checked."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, TypeVar, cast

import msgspec
from msgspec import Meta

from ddpdoctor.events import Int64
from ddpdoctor.hang.calls import Call, CallGroup, CallSite, Sizes
from ddpdoctor.hang.plainpickle import NotPlain, load_plain
from ddpdoctor.hang.snapshot import Answer, PendingEntry
from ddpdoctor.stackframes import Origin, origin_of

MAX_PENDING: Final = 64
MAX_SIZES: Final = 8  # tensors of one entry, and dimensions of one tensor, that are kept
MAX_ENTRIES: Final = 200_000  # torch keeps 2,000 unless told otherwise
MAX_GROUPS: Final = 10_000
MAX_FRAMES: Final = 1_000  # of one call
_MOST_TENSORS: Final = 100_000  # of one call: a coalesced one has one for each parameter
_Value = TypeVar("_Value")
_Short = Annotated[str, Meta(max_length=200)]
_Path = Annotated[str, Meta(max_length=4096)]
_Size = Annotated[list[Int64], Meta(max_length=64)]
_SizeList = Annotated[list[_Size], Meta(max_length=_MOST_TENSORS)]
_RANKS = re.compile(r"\[(\s*\d{1,7}\s*(,\s*\d{1,7}\s*)*)?\]")
_PEERS = re.compile(r"(send|recv) (\d{1,7})(->|<-)(\d{1,7})")


@dataclass(frozen=True)
class _Frame:
    """The names here and below are torch's."""

    filename: _Path = ""
    line: Int64 = 0
    name: _Path = ""


@dataclass(frozen=True)
class _Entry:
    """One collective, send or receive."""

    process_group: Annotated[list[_Short], Meta(min_length=1, max_length=4)]
    collective_seq_id: Int64
    p2p_seq_id: Int64
    is_p2p: bool
    profiling_name: _Short
    input_sizes: _SizeList
    time_created_ns: Int64
    retired: bool
    state: _Short
    output_sizes: _SizeList = field(default_factory=list)
    input_dtypes: Annotated[list[_Short], Meta(max_length=_MOST_TENSORS)] = field(
        default_factory=list
    )
    frames: Annotated[list[_Frame], Meta(max_length=MAX_FRAMES)] = field(default_factory=list)


@dataclass(frozen=True)
class _Group:
    name: _Short
    desc: _Short = ""
    ranks: Annotated[str, Meta(max_length=1_000_000)] = "[]"  # a list, written out


@dataclass(frozen=True)
class _Dump:
    version: _Short | None = None
    entries: Annotated[list[_Entry], Meta(max_length=MAX_ENTRIES)] | None = None
    pg_config: Annotated[dict[_Short, _Group], Meta(max_length=MAX_GROUPS)] = field(
        default_factory=dict
    )


class NotADump(Exception):
    """It is no dump of the flight recorder."""


class BadDump(Exception):
    """It may be a dump, and cannot be read; the message is the reason."""


@dataclass(frozen=True)
class OneDump:
    """A dump by itself. `rank` is what it tells of its own number, if anything."""

    calls: tuple[Call, ...]
    groups: tuple[CallGroup, ...] = ()
    rank: int | None = None

    @property
    def worth(self) -> tuple[int, int]:
        """Of two dumps of a rank the later one counts, else the one that tells the lines."""
        newest_ns = max((call.created_ns for call in self.calls), default=0)
        return newest_ns, sum(call.site is not None for call in self.calls)


def parse_dump(data: bytes) -> OneDump:
    """One dump, in either form. Raises NotADump or BadDump."""
    try:
        dump = _decoded(data)
    except NotPlain as error:
        raise BadDump(str(error)) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadDump(f"it is not as expected ({_brief(error)})") from None
    if dump.version is None or (dump.entries is None and not dump.pg_config):
        raise NotADump
    groups = tuple(_groups(dump))
    entries = sorted(dump.entries or (), key=lambda entry: entry.time_created_ns)
    return OneDump(tuple(_calls(entries, groups)), groups, _own_rank(entries, groups))


def is_pickle(data: bytes) -> bool:
    return data[:1] == b"\x80"


def may_be_dump(head: bytes) -> bool:
    """Whether a file that begins like this can be one."""
    return is_pickle(head) or head.lstrip()[:1] == b"{"


def _decoded(data: bytes) -> _Dump:
    if not may_be_dump(data):
        raise NotADump
    if not is_pickle(data):
        return msgspec.json.decode(data, type=_Dump)
    plain = load_plain(data)
    if not isinstance(plain, dict):
        raise NotADump
    return msgspec.convert(plain, type=_Dump)


def _brief(error: Exception) -> str:
    return "too deeply nested" if isinstance(error, RecursionError) else str(error)[:200]


def _groups(dump: _Dump) -> Iterator[CallGroup]:
    read: dict[str, tuple[int, ...]] = {}  # many groups may have the same ranks
    for group in dump.pg_config.values():
        if group.ranks not in read:
            told = re.findall(r"\d+", group.ranks) if _RANKS.fullmatch(group.ranks) else []
            read[group.ranks] = tuple(map(int, told))
        yield CallGroup(group.name, group.desc, read[group.ranks])


def _calls(entries: list[_Entry], groups: tuple[CallGroup, ...]) -> Iterator[Call]:
    members = {group.name: group.members for group in groups}
    once: dict[object, object] = {}  # a loop makes the same calls again and again

    def shared(value: _Value) -> _Value:
        return cast(_Value, once.setdefault(value, value))

    for entry in entries:
        op = entry.profiling_name.rpartition(":")[2]
        peers = _PEERS.fullmatch(op)
        yield Call(
            entry.process_group[0],
            entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id,
            peers[1] if peers else op,
            entry.retired or entry.state == "completed",
            entry.state,
            entry.time_created_ns,
            shared(_kept(entry.input_sizes)),
            shared(_kept(entry.output_sizes)),
            shared(tuple(entry.input_dtypes[:MAX_SIZES])),
            entry.is_p2p,
            _member(members.get(entry.process_group[0], ()), int(peers[4])) if peers else None,
            shared(_site(entry.frames)),
        )


def _kept(sizes: list[list[int]]) -> Sizes:
    return tuple(tuple(size[:MAX_SIZES]) for size in sizes[:MAX_SIZES])


def _member(members: tuple[int, ...], place: int) -> int | None:
    return members[place] if place < len(members) else None


def _site(frames: list[_Frame]) -> CallSite | None:
    """The user's innermost line."""
    for frame in frames:
        if origin_of(frame.filename) is Origin.USER:
            return CallSite(frame.filename, frame.line, frame.name)
    return None


def _own_rank(entries: list[_Entry], groups: tuple[CallGroup, ...]) -> int | None:
    """By sends and receives, which name their own place first, else by being in all its groups."""
    members = {group.name: group.members for group in groups}
    for entry in entries:
        peers = _PEERS.fullmatch(entry.profiling_name.rpartition(":")[2])
        if peers:
            own = _member(members.get(entry.process_group[0], ()), int(peers[2]))
            if own is not None:
                return own
    told = [set(group.members) for group in groups if group.members]
    common = set.intersection(*told) if told else set()
    return common.pop() if len(common) == 1 else None


def told_in(answer: bytes) -> Answer | None:
    """What a rank answered; None where that does not tell."""
    try:
        dump = msgspec.json.decode(answer, type=_Dump)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not dump.entries:  # nothing was issued yet, or the flight recorder is switched off
        return None
    entries = sorted(dump.entries, key=lambda entry: entry.time_created_ns)
    calls = (replace(call, seq=max(0, call.seq - 1)) for call in _calls(entries, ()))
    return Answer(tuple(_pending(dump.entries)), tuple(calls))


def _pending(entries: list[_Entry]) -> Iterator[PendingEntry]:
    now_ns = time.time_ns()
    pending = [entry for entry in entries if not entry.retired]
    for entry in pending[-MAX_PENDING:]:
        yield PendingEntry(
            entry.process_group[0],
            max(0, (entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id) - 1),
            entry.profiling_name.rpartition(":")[2],
            _kept(entry.input_sizes),
            entry.state,
            max(0.0, (now_ns - entry.time_created_ns) / 1e9),
        )
