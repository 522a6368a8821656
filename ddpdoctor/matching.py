"""Collectives of all ranks put together by group and sequence number: who arrives last.

Definitions of design §4: arrival, lateness, wait, queue, transfer, caused delay. Ranks are
aligned by (group, sequence number), never by their step counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpdoctor.events import Flag, Kind, Op
from ddpdoctor.recordedcalls import UNKNOWN, Recorded, RecordedCalls, is_matched
from ddpdoctor.tracefile import RankTrace

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_Numbers = tuple[slice | Bools, Ints | slice]  # calls that are put together, and their numbers
_SPARSE = 4  # times the records: sequence numbers that reach further are numbered anew


@dataclass(frozen=True)
class Collectives(Recorded):
    """Columns of collectives, with what only the other ranks' records tell."""

    first_arrival_ns: Ints
    last_arrival_ns: Ints
    last_rank: Ints
    caused_ns: Ints
    complete: Bools
    wait_ns: Ints
    queue_ns: Ints
    transfer_ns: Ints


class Matched:
    """The collectives of a run. What all ranks of one have in common is kept once.

    So what a rank alone has not recorded is put beside its calls when it is asked for: a run may
    have tens of millions of them.
    """

    def __init__(self, calls: RecordedCalls, ranks: Sequence[RankTrace]) -> None:
        self.recorded, self.places = calls.columns, calls.places
        parts = {
            rank: part
            for rank, place in calls.places.items()
            if (part := _Alike.of(self.recorded.part(place))) is not None
        }
        numbers = dict(zip(parts, range(len(parts)), strict=True))
        self._numbering = _numbering([(part.group, part.seq) for part in parts.values()])
        self._numbers = numbers
        self._met = _Met.of(len(self._numbering.group))
        for rank, part in parts.items():
            self._met.add(self._numbering.of(numbers[rank], part), part.arrival_ns, rank)
        self._met.close(calls.groups[self._numbering.group])
        self._messages = _pair_up(self.recorded, sorted(ranks, key=lambda each: each.info.rank))

    def recorded_of(self, rank: int) -> Recorded:
        return self.recorded.part(self.places[rank])

    def last_arrivals(self, rank: int) -> Ints:
        """At each of the rank's calls."""
        own = self.recorded_of(rank)
        return self._told(rank, self._numbers_of(rank, own), "last_arrival_ns", own.arrival_ns)

    def of_rank(self, rank: int) -> Collectives:
        own = self.recorded_of(rank)
        alone: dict[str, npt.NDArray[Any]] = {
            "first_arrival_ns": own.arrival_ns,
            "last_arrival_ns": own.arrival_ns,
            "last_rank": own.rank,
            "caused_ns": np.zeros(len(own.rank), np.int64),
            "complete": np.zeros(len(own.rank), np.bool_),
        }
        numbers = self._numbers_of(rank, own)
        told = {name: self._told(rank, numbers, name, each) for name, each in alone.items()}
        wait, queue, transfer = _durations(own, told["last_arrival_ns"])
        durations: dict[str, Any] = {"wait_ns": wait, "queue_ns": queue, "transfer_ns": transfer}
        return Collectives(**own.columns(), **told, **durations)

    def _numbers_of(self, rank: int, own: Recorded) -> _Numbers | None:
        alike = _Alike.of(own)
        if alike is None:
            return None
        return alike.which, self._numbering.of(self._numbers[rank], alike)

    def _told(
        self, rank: int, numbers: _Numbers | None, name: str, alone: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        """A column of what all ranks tell; `alone` where a call is not put together with others."""
        told = alone
        if numbers is not None:
            which, at = numbers
            met = self._met.told(name)[at]
            if isinstance(which, slice):
                return met  # all of them
            told = alone.copy()
            told[which] = met
        if self._messages is not None:
            rows, values = self._messages.within(self.places[rank], name)
            told = told.copy()
            told[rows] = values
        return told


@dataclass(frozen=True)
class _Alike:
    """Those calls of one rank that are put together with the other ranks'."""

    which: slice | Bools
    group: Ints
    seq: Ints
    arrival_ns: Ints

    @classmethod
    def of(cls, own: Recorded) -> _Alike | None:
        """None where there is none."""
        alike = is_matched(own.flags, own.group)
        if not alike.any():
            return None
        which = slice(None) if alike.all() else alike
        return cls(which, own.group[which], own.seq[which], own.arrival_ns[which])


@dataclass(frozen=True)
class _Numbering:
    """A small number for each (group, seq), and the group of each number."""

    offset: Ints  # of each group, to add to the sequence number
    group: Ints
    sparse: Sequence[Ints] = ()  # of each part, where adding would leave too many gaps

    def of(self, number: int, part: _Alike) -> Ints | slice:
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
    count = max((1 + int(group.max()) for group, _ in parts), default=0)
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
    caused: Ints  # last - second-last arrival, once all have been seen; likewise `complete`
    complete: Bools

    @classmethod
    def of(cls, count: int) -> _Met:
        long_ago = np.full(count, -(2**62))
        return cls(
            np.full(count, 2**62), long_ago, long_ago.copy(), np.zeros(count, np.int32),
            np.zeros(count, np.int32), np.zeros(count, np.int64), np.zeros(count, np.bool_),
        )  # fmt: skip

    def close(self, group_sizes: Ints) -> None:
        self.caused[:] = np.where(self.present > 1, self.last - self.second, 0)
        self.complete[:] = self.present == group_sizes

    def told(self, name: str) -> npt.NDArray[Any]:
        """A column of `Collectives`, by number."""
        columns: dict[str, npt.NDArray[Any]] = {
            "first_arrival_ns": self.first, "last_arrival_ns": self.last,
            "last_rank": self.last_rank, "caused_ns": self.caused, "complete": self.complete,
        }  # fmt: skip
        return columns[name]

    def add(self, at: Ints | slice, arrival: Ints, rank: int) -> None:
        """Those of one rank, which has each of its collectives once."""
        before = self.last[at]
        self.last_rank[at] = np.where(arrival >= before, rank, self.last_rank[at])
        self.second[at] = np.maximum(self.second[at], np.minimum(before, arrival))
        self.last[at] = np.maximum(before, arrival)
        self.first[at] = np.minimum(self.first[at], arrival)
        self.present[at] += 1


@dataclass(frozen=True)
class _Messages:
    """Sends and receives that met, by their rows."""

    rows: Ints
    first_ns: Ints
    last_ns: Ints
    last_rank: Ints

    def within(self, place: slice, name: str) -> tuple[Ints, Ints]:
        """Those of one rank: their rows among its own, and a column of `Collectives`, if told."""
        told = {
            "first_arrival_ns": self.first_ns, "last_arrival_ns": self.last_ns,
            "last_rank": self.last_rank,
        }  # fmt: skip
        if name not in told:
            return self.rows[:0], self.rows[:0]
        own = slice(*np.searchsorted(self.rows, [place.start, place.stop]))
        return self.rows[own] - place.start, told[name][own]


def _pair_up(calls: Recorded, ranks: Sequence[RankTrace]) -> _Messages | None:
    """Arrivals of sends and receives: the n-th send to a peer meets its n-th receive.

    Where the two sides do not have equally many, as after thinning out, they are left apart.
    """
    is_message = (calls.op == int(Op.SEND)) | (calls.op == int(Op.RECV))
    if not is_message.any():
        return None
    peers = np.concatenate([_peers(trace) for trace in ranks])
    is_message &= (peers != UNKNOWN) & ((calls.flags & int(Flag.FAILED)) == 0)
    rows = np.flatnonzero(is_message)
    if not len(rows):
        return None
    is_send, rank, group = calls.op[rows] == int(Op.SEND), calls.rank[rows], calls.group[rows]
    source = np.where(is_send, rank, peers[rows])
    target = np.where(is_send, peers[rows], rank)
    order = np.lexsort((calls.arrival_ns[rows], is_send, target, source, group))
    channel = np.stack([target, source, group])[:, order]
    begins = np.flatnonzero((np.diff(channel, axis=1, prepend=-2) != 0).any(axis=0))
    one, other = [rows[:0]], [rows[:0]]
    for messages in np.split(order, begins[1:]):
        receives, sends = rows[messages[~is_send[messages]]], rows[messages[is_send[messages]]]
        if len(receives) == len(sends):
            one.append(receives)
            other.append(sends)
    return _met(calls, np.concatenate(one), np.concatenate(other))


def _met(calls: Recorded, one: Ints, other: Ints) -> _Messages:
    arrivals = np.stack([calls.arrival_ns[one], calls.arrival_ns[other]])
    last_rank = np.where(arrivals[1] > arrivals[0], calls.rank[other], calls.rank[one])
    rows = np.concatenate([one, other])
    order = np.argsort(rows)
    first, last, last_rank = (
        np.tile(each, 2)[order] for each in (arrivals.min(axis=0), arrivals.max(axis=0), last_rank)
    )
    return _Messages(rows[order], first, last, last_rank)


def _peers(trace: RankTrace) -> Ints:
    """Global ranks of the sources and destinations of a rank's messages, UNKNOWN elsewhere."""
    records = trace.of_kind(Kind.COLLECTIVE)
    found = np.full(len(records), UNKNOWN, np.int64)
    for index, group in enumerate(trace.groups):
        members = np.array(group.ranks, np.int64)
        inside = (records["group"] == index) & (records["flags"] & int(Flag.POINT_TO_POINT) > 0)
        inside &= (records["peer"] >= 0) & (records["peer"] < len(members))
        found[inside] = members[records["peer"][inside]]
    return found


def _durations(own: Recorded, last: Ints) -> tuple[Ints, Ints, Ints]:
    """wait, queue and transfer of each collective of one rank (gloo: two at once a group)."""
    completion = own.completion_ns
    known = (completion >= 0) & ((own.flags & int(Flag.FAILED | Flag.UNTIMED)) == 0)
    wait = np.maximum(0, np.where(known, np.minimum(last, completion), last) - own.arrival_ns)
    queue = np.zeros(len(last), np.int64)
    groups = _groups(own.group)
    for group in groups:
        in_group = known if len(groups) == 1 else known & (own.group == group)
        rows: Ints | slice = slice(None) if in_group.all() else np.flatnonzero(in_group)
        seq = own.seq[rows]
        if (seq[1:] < seq[:-1]).any():
            rows = np.flatnonzero(in_group)
            rows = rows[np.argsort(own.seq[rows], kind="stable")]
        queue[rows] = np.maximum(0, _second_largest_before(completion[rows]) - last[rows])
    return wait, queue, np.where(known, np.maximum(0, completion - last - queue), UNKNOWN)


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
