"""Collectives of all ranks put together by group and sequence number: who arrives last.

Definitions of design §4: arrival, lateness, wait, queue, transfer, caused delay. Ranks are
aligned by (group, sequence number), never by their step counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ddpdoctor.clocks import CommonClock, RankClock
from ddpdoctor.events import Flag, GroupInfo, Kind, Op, Phase
from ddpdoctor.tracefile import RankTrace

Ints = npt.NDArray[np.int64]
UNKNOWN = -1
_SPARSE = 4  # times the records: sequence numbers that reach further are numbered anew
_NARROW = {
    "rank": np.int32, "group": np.int32, "op": np.int16, "flags": np.int16, "bucket": np.int16,
    "last_rank": np.int32, "complete": np.bool_,
}  # fmt: skip
# Sends pair up on their own, and a call that raised reduced nothing: neither is put together
# with the other ranks' calls.
UNMATCHED = Flag.POINT_TO_POINT | Flag.FAILED


def is_matched(flags: npt.ArrayLike, group: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether a collective is put together with those of the other ranks."""
    apart = np.asarray(flags) & int(UNMATCHED)
    return np.asarray((apart == 0) & (np.asarray(group) != UNKNOWN))


@dataclass(frozen=True)
class Collectives:
    """Columns of collective records. Times are on the common clock; UNKNOWN where not known."""

    rank: Ints
    group: Ints
    seq: Ints
    op: Ints
    flags: Ints
    bucket: Ints
    step: Ints
    sync: Ints
    site: Ints
    nbytes: Ints
    arrival_ns: Ints
    issued_ns: Ints
    completion_ns: Ints
    first_arrival_ns: Ints
    last_arrival_ns: Ints
    last_rank: Ints
    caused_ns: Ints
    complete: Ints
    wait_ns: Ints
    queue_ns: Ints
    transfer_ns: Ints

    @property
    def latest_ns(self) -> int:
        return int(max(self.arrival_ns.max(initial=0), self.completion_ns.max(initial=0)))

    def of_rank(self, rank: int) -> Collectives:
        """Views of the columns of one rank: they lie one rank after the other."""
        own = slice(*np.searchsorted(self.rank, np.array([rank, rank + 1], self.rank.dtype)))
        return Collectives(**{name: column[own] for name, column in self.columns().items()})

    def columns(self) -> dict[str, Ints]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def match(ranks: Sequence[RankTrace], clock: CommonClock) -> Collectives:
    """All collectives, with what only the other ranks' records tell."""
    numbering: dict[GroupInfo, int] = {}
    ordered = sorted(ranks, key=lambda trace: trace.info.rank)
    calls = [trace.kind == Kind.COLLECTIVE for trace in ordered]
    ends = np.cumsum([np.count_nonzero(own) for own in calls])
    columns = _empty(int(ends[-1]))
    places = [slice(int(b), int(e)) for b, e in zip([0, *ends[:-1]], ends, strict=True)]
    for trace, own, place in zip(ordered, calls, places, strict=True):
        part = {name: column[place] for name, column in columns.items()}
        _fill(part, trace, own, clock.ranks[trace.info.rank], numbering)
    sizes = np.array([len(group.ranks) for group in numbering], np.int64)
    _arrivals(columns, sizes, places)
    _pair_up(columns, ordered)
    for place in places:
        _durations({name: column[place] for name, column in columns.items()})
    return Collectives(**columns)


def _empty(count: int) -> dict[str, Ints]:
    """Room for the columns; small numbers take less of it, since there may be tens of millions."""
    return {
        field.name: np.empty(count, _NARROW.get(field.name, np.int64))
        for field in fields(Collectives)
    }


def _fill(
    columns: dict[str, Ints], trace: RankTrace, own: npt.NDArray[np.bool_], clock: RankClock,
    numbering: dict[GroupInfo, int],
) -> None:  # fmt: skip
    """What the records of one rank tell."""
    records = trace.detail[own]
    local = [numbering.setdefault(group, len(numbering)) for group in trace.groups]
    number = np.array([*local, UNKNOWN], np.int64)  # UNKNOWN where the fact was lost
    for name in ("seq", "flags", "bucket", "step", "sync", "site", "nbytes"):
        columns[name][:] = records[name]
    columns["rank"][:] = trace.info.rank
    columns["op"][:] = records["code"]
    columns["group"][:] = number[np.minimum(records["group"], len(local))]
    columns["arrival_ns"][:] = clock.to_common(records["begin_ns"])
    for name, recorded in (("issued_ns", "issued_ns"), ("completion_ns", "end_ns")):
        times = records[recorded]
        columns[name][:] = np.where(times > 0, clock.to_common(times), UNKNOWN)
    sync_ends = clock.to_common(_sync_ends(trace))
    columns["completion_ns"][:] = _within_backward(columns, sync_ends)


def _sync_ends(trace: RankTrace) -> Ints:
    """When each backward had waited for its reductions."""
    spans = trace.of_kind(Kind.SPAN)
    ends = spans["end_ns"][spans["code"] == Phase.BLOCKED]
    return np.sort(ends[ends > 0])


def _within_backward(columns: dict[str, Ints], sync_ends: Ints) -> Ints:
    """Completions of buckets, none later than the end of their backward.

    The callback that stamps a completion needs the interpreter's lock and may come after the thread
    that waited has gone on.
    """
    completion = columns["completion_ns"]
    if not len(sync_ends):
        return completion
    index = _counted_up_to(sync_ends, columns["arrival_ns"])
    has_end = (index < len(sync_ends)) & ((columns["flags"] & Flag.BUCKET) > 0)
    latest = sync_ends[np.minimum(index, len(sync_ends) - 1)]
    return np.where(has_end & (completion >= 0), np.minimum(completion, latest), completion)


def _counted_up_to(bounds: Ints, times: Ints) -> Ints:
    """How many of the sorted bounds are no later than each time.

    Where times rise, the few bounds are looked up among the many times.
    """
    if (times[1:] < times[:-1]).any():
        return np.searchsorted(bounds, times, "right")
    at = np.searchsorted(times, bounds)
    return np.repeat(np.arange(len(bounds) + 1), np.diff(at, prepend=0, append=len(times)))


def _arrivals(columns: dict[str, Ints], group_sizes: Ints, places: Sequence[slice]) -> None:
    """First, last and second-last arrival of each collective over the ranks, rank by rank."""
    columns["first_arrival_ns"][:] = columns["arrival_ns"]
    columns["last_arrival_ns"][:] = columns["arrival_ns"]
    columns["last_rank"][:] = columns["rank"]
    columns["caused_ns"][:] = 0
    columns["complete"][:] = False
    parts = [_Matched.of({name: columns[name][place] for name in columns}) for place in places]
    parts = [part for part in parts if part is not None]
    if not parts:
        return
    numbering = _numbering([(part.group, part.seq) for part in parts])
    met = _Met.of(len(numbering.group))
    for number, part in enumerate(parts):
        met.add(numbering.of(number, part), part.columns["arrival_ns"][part.which], part.rank)
    met.second[:] = np.where(met.present > 1, met.last - met.second, 0)
    complete = met.present == group_sizes[numbering.group]
    for number, part in enumerate(parts):
        at = numbering.of(number, part)
        told = (met.first, met.last, met.last_rank, met.second, complete)
        for name, values in zip(_TOLD, told, strict=True):
            part.columns[name][part.which] = values[at]


_TOLD = ("first_arrival_ns", "last_arrival_ns", "last_rank", "caused_ns", "complete")


@dataclass(frozen=True)
class _Matched:
    """Those calls of one rank that are put together with the other ranks'."""

    columns: dict[str, Ints]  # views of those of all ranks
    which: slice | npt.NDArray[np.bool_]
    rank: int
    group: Ints
    seq: Ints

    @classmethod
    def of(cls, columns: dict[str, Ints]) -> _Matched | None:
        alike = is_matched(columns["flags"], columns["group"])
        if not alike.any():
            return None
        which = slice(None) if alike.all() else alike
        rank = int(columns["rank"][0])
        return cls(columns, which, rank, columns["group"][which], columns["seq"][which])


@dataclass(frozen=True)
class _Numbering:
    """A small number for each (group, seq), and the group of each number."""

    offset: Ints  # of each group, to add to the sequence number
    group: Ints
    sparse: Sequence[Ints] = ()  # of each part, where adding would leave too many gaps

    def of(self, number: int, part: _Matched) -> Ints | slice:
        """Of a part's calls: a slice where they are numbered one after the other."""
        if self.sparse:
            return self.sparse[number]
        group, seq = part.group, part.seq
        first, count = int(seq[0]), len(seq)
        if int(seq[-1]) - first == count - 1 and (group == group[0]).all():
            begin = first + int(self.offset[group[0]])
            if (seq[1:] - seq[:-1] == 1).all():
                return slice(begin, begin + count)
        return np.asarray(self.offset[group] + seq)


def _numbering(parts: Sequence[tuple[Ints, Ints]]) -> _Numbering:
    count = 1 + max(int(group.max()) for group, _ in parts)
    least, most = np.full(count, 2**62), np.full(count, -1)
    for group, seq in parts:
        if (group == group[0]).all():
            least[group[0]] = min(least[group[0]], seq.min())
            most[group[0]] = max(most[group[0]], seq.max())
        else:
            np.minimum.at(least, group, seq)
            np.maximum.at(most, group, seq)
    extent = np.maximum(most - least + 1, 0)
    if extent.sum() <= _SPARSE * sum(len(seq) for _, seq in parts):
        begins = np.cumsum(extent) - extent
        return _Numbering(begins - least, np.repeat(np.arange(count), extent))
    pairs = np.concatenate([np.stack(part) for part in parts], axis=1)
    known, numbers = np.unique(pairs, axis=1, return_inverse=True)
    ends = np.cumsum([len(seq) for _, seq in parts])
    return _Numbering(np.empty(0, np.int64), known[0], np.split(numbers.reshape(-1), ends[:-1]))


@dataclass(frozen=True)
class _Met:
    """Of each collective the arrivals seen so far."""

    first: Ints
    last: Ints
    second: Ints
    last_rank: Ints
    present: Ints

    @classmethod
    def of(cls, count: int) -> _Met:
        long_ago = np.full(count, -(2**62))
        return cls(
            np.full(count, 2**62), long_ago, long_ago.copy(), np.zeros(count, np.int32),
            np.zeros(count, np.int32),
        )  # fmt: skip

    def add(self, at: Ints | slice, arrival: Ints, rank: int) -> None:
        """Those of one rank, which has each of its collectives once."""
        before = self.last[at]
        self.last_rank[at] = np.where(arrival >= before, rank, self.last_rank[at])
        self.second[at] = np.maximum(self.second[at], np.minimum(before, arrival))
        self.last[at] = np.maximum(before, arrival)
        self.first[at] = np.minimum(self.first[at], arrival)
        self.present[at] += 1


def _pair_up(columns: dict[str, Ints], ranks: Sequence[RankTrace]) -> None:
    """Arrivals of sends and receives: the n-th send to a peer meets its n-th receive.

    Where the two sides do not have equally many, as after thinning out, they are left apart.
    """
    is_message = (columns["op"] == Op.SEND) | (columns["op"] == Op.RECV)
    if not is_message.any():
        return
    peers = np.concatenate([_peers(trace) for trace in ranks])
    is_message &= (peers != UNKNOWN) & ((columns["flags"] & int(Flag.FAILED)) == 0)
    rows = np.flatnonzero(is_message)
    if not len(rows):
        return
    is_send = columns["op"][rows] == Op.SEND
    source = np.where(is_send, columns["rank"][rows], peers[rows])
    target = np.where(is_send, peers[rows], columns["rank"][rows])
    keys = (columns["arrival_ns"][rows], is_send, target, source, columns["group"][rows])
    order = np.lexsort(keys)
    channel = np.stack([target, source, columns["group"][rows]])[:, order]
    begins = np.flatnonzero((np.diff(channel, axis=1, prepend=-2) != 0).any(axis=0))
    for messages in np.split(order, begins[1:]):
        receives, sends = rows[messages[~is_send[messages]]], rows[messages[is_send[messages]]]
        if len(receives) == len(sends):
            _meet(columns, receives, sends)


def _meet(columns: dict[str, Ints], one: Ints, other: Ints) -> None:
    arrivals = np.stack([columns["arrival_ns"][one], columns["arrival_ns"][other]])
    last = np.stack([columns["rank"][one], columns["rank"][other]])
    last_rank = np.where(arrivals[1] > arrivals[0], last[1], last[0])
    for rows in (one, other):
        columns["first_arrival_ns"][rows] = arrivals.min(axis=0)
        columns["last_arrival_ns"][rows] = arrivals.max(axis=0)
        columns["last_rank"][rows] = last_rank


def _peers(trace: RankTrace) -> Ints:
    """Global ranks of the sources and destinations of a rank's messages, UNKNOWN elsewhere."""
    records = trace.of_kind(Kind.COLLECTIVE)
    found = np.full(len(records), UNKNOWN, np.int64)
    for index, group in enumerate(trace.groups):
        members = np.array(group.ranks, np.int64)
        inside = (records["group"] == index) & (records["flags"] & Flag.POINT_TO_POINT > 0)
        inside &= (records["peer"] >= 0) & (records["peer"] < len(members))
        found[inside] = members[records["peer"][inside]]
    return found


def _durations(own: dict[str, Ints]) -> None:
    """wait, queue and transfer of each collective of one rank (gloo: two at once a group)."""
    arrival, completion, last = own["arrival_ns"], own["completion_ns"], own["last_arrival_ns"]
    known = (completion >= 0) & ((own["flags"] & int(Flag.FAILED | Flag.UNTIMED)) == 0)
    until = np.where(known, np.minimum(last, completion), last)
    np.maximum(0, until - arrival, out=own["wait_ns"])
    queue = own["queue_ns"]
    queue[:] = 0
    groups = _groups(own["group"])
    for group in groups:
        in_group = known if len(groups) == 1 else known & (own["group"] == group)
        rows: Ints | slice = slice(None) if in_group.all() else np.flatnonzero(in_group)
        seq = own["seq"][rows]
        if (seq[1:] < seq[:-1]).any():
            rows = np.flatnonzero(in_group)
            rows = rows[np.argsort(own["seq"][rows], kind="stable")]
        queue[rows] = np.maximum(0, _second_largest_before(completion[rows]) - last[rows])
    transfer = np.maximum(0, completion - last - queue)
    own["transfer_ns"][:] = np.where(known, transfer, UNKNOWN)


def _groups(numbers: Ints) -> Ints:
    """Each group once; mostly there is one."""
    same = len(numbers) > 0 and bool((numbers == numbers[0]).all())
    return numbers[:1] if same else np.unique(numbers)


def _second_largest_before(values: Ints) -> Ints:
    """For each position the second-largest of all earlier values, 0 where there are fewer."""
    if len(values) == 0:
        return values
    largest = np.maximum.accumulate(values)
    largest_before = np.concatenate([[0], largest[:-1]])
    displaced = np.minimum(values, largest_before)
    second = np.maximum.accumulate(displaced)
    return np.concatenate([[0], second[:-1]])
