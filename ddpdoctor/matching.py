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
# Sends pair up on their own, and a call that raised reduced nothing: neither is put together
# with the other ranks' calls.
UNMATCHED = Flag.POINT_TO_POINT | Flag.FAILED


def is_matched(flags: npt.ArrayLike, group: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether a collective is put together with those of the other ranks."""
    apart = np.asarray(flags, np.int64) & int(UNMATCHED)
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
        """Copies of the columns of one rank."""
        return self._where(self.rank == rank)

    def _where(self, which: npt.NDArray[np.bool_]) -> Collectives:
        return Collectives(**{name: column[which] for name, column in self.columns().items()})

    def store_steps(self, rank: int, steps: Ints) -> None:
        self.step[self.rank == rank] = steps

    def columns(self) -> dict[str, Ints]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def match(ranks: Sequence[RankTrace], clock: CommonClock) -> Collectives:
    """All collectives, with what only the other ranks' records tell."""
    numbering: dict[GroupInfo, int] = {}
    parts = [_columns_of(trace, clock.ranks[trace.info.rank], numbering) for trace in ranks]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    sizes = np.array([len(group.ranks) for group in numbering], np.int64)
    columns |= _arrivals(columns, sizes)
    _pair_up(columns, np.concatenate([_peers(trace) for trace in ranks]))
    columns |= _durations(columns)
    return Collectives(**columns)


def _columns_of(
    trace: RankTrace, clock: RankClock, numbering: dict[GroupInfo, int]
) -> dict[str, Ints]:
    records = trace.detail[trace.detail["kind"] == Kind.COLLECTIVE]
    local = [numbering.setdefault(group, len(numbering)) for group in trace.groups]
    number = np.array([*local, UNKNOWN], np.int64)  # UNKNOWN where the fact was lost
    columns = {
        name: records[name].astype(np.int64)
        for name in ("seq", "flags", "bucket", "step", "sync", "site", "nbytes")
    }
    columns["rank"] = np.full(len(records), trace.info.rank, np.int64)
    columns["op"] = records["code"].astype(np.int64)
    columns["group"] = number[np.minimum(records["group"], len(local))]
    columns["arrival_ns"] = clock.to_common(records["begin_ns"])
    for name, recorded in (("issued_ns", "issued_ns"), ("completion_ns", "end_ns")):
        known = records[recorded] > 0
        columns[name] = np.where(known, clock.to_common(records[recorded]), UNKNOWN)
    sync_ends = clock.to_common(_sync_ends(trace))
    columns["completion_ns"] = _within_backward(columns, sync_ends)
    return columns


def _sync_ends(trace: RankTrace) -> Ints:
    """When each backward had waited for its reductions."""
    spans = trace.detail[trace.detail["kind"] == Kind.SPAN]
    ends = spans["end_ns"][(spans["code"] == Phase.BLOCKED) & (spans["end_ns"] > 0)]
    return np.sort(ends.astype(np.int64))


def _within_backward(columns: dict[str, Ints], sync_ends: Ints) -> Ints:
    """Completions of buckets, none later than the end of their backward.

    The callback that stamps a completion needs the interpreter's lock and may come after the thread
    that waited has gone on.
    """
    completion = columns["completion_ns"]
    if not len(sync_ends):
        return completion
    index = np.searchsorted(sync_ends, columns["arrival_ns"], "right")
    has_end = (index < len(sync_ends)) & ((columns["flags"] & Flag.BUCKET) > 0)
    latest = sync_ends[np.minimum(index, len(sync_ends) - 1)]
    return np.where(has_end & (completion >= 0), np.minimum(completion, latest), completion)


def _arrivals(columns: dict[str, Ints], group_sizes: Ints) -> dict[str, Ints]:
    """First, last and second-last arrival of each collective over the ranks, by sorting."""
    count = len(columns["rank"])
    own = columns["arrival_ns"]
    result = {
        "first_arrival_ns": own.copy(), "last_arrival_ns": own.copy(),
        "last_rank": columns["rank"].copy(), "caused_ns": np.zeros(count, np.int64),
        "complete": np.zeros(count, np.bool_),
    }  # fmt: skip
    alike = np.flatnonzero(is_matched(columns["flags"], columns["group"]))
    if not len(alike):
        return result  # type: ignore[return-value]
    order = alike[np.lexsort((own[alike], columns["seq"][alike], columns["group"][alike]))]
    group, seq, arrival = columns["group"][order], columns["seq"][order], own[order]
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(group) != 0) | (np.diff(seq) != 0)]))
    present = np.diff(np.concatenate([begins, [len(order)]]))
    ends = begins + present - 1
    second = arrival[np.maximum(ends - 1, begins)]
    expected = group_sizes[group[begins]]
    for name, value in (
        ("first_arrival_ns", arrival[begins]),
        ("last_arrival_ns", arrival[ends]),
        ("last_rank", columns["rank"][order][ends]),
        ("caused_ns", arrival[ends] - second),
        ("complete", present == expected),
    ):
        result[name][order] = np.repeat(value, present)
    return result  # type: ignore[return-value]


def _pair_up(columns: dict[str, Ints], peers: Ints) -> None:
    """Arrivals of sends and receives: the n-th send to a peer meets its n-th receive.

    Where the two sides do not have equally many, as after thinning out, they are left apart.
    """
    is_message = np.isin(columns["op"], (Op.SEND, Op.RECV)) & (peers != UNKNOWN)
    rows = np.flatnonzero(is_message & ((columns["flags"] & Flag.FAILED) == 0))
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
    records = trace.detail[trace.detail["kind"] == Kind.COLLECTIVE]
    found = np.full(len(records), UNKNOWN, np.int64)
    for index, group in enumerate(trace.groups):
        members = np.array(group.ranks, np.int64)
        inside = (records["group"] == index) & (records["flags"] & Flag.POINT_TO_POINT > 0)
        inside &= (records["peer"] >= 0) & (records["peer"] < len(members))
        found[inside] = members[records["peer"][inside]]
    return found


def _durations(columns: dict[str, Ints]) -> dict[str, Ints]:
    """wait, queue and transfer of each collective on each rank (gloo: two at once a group)."""
    arrival, completion = columns["arrival_ns"], columns["completion_ns"]
    last = columns["last_arrival_ns"]
    known = (completion >= 0) & ((columns["flags"] & (Flag.FAILED | Flag.UNTIMED)) == 0)
    wait = np.where(known, np.minimum(last, completion), last) - arrival
    queue = np.zeros(len(arrival), np.int64)
    for rank in np.unique(columns["rank"]):
        for group in np.unique(columns["group"]):
            own = np.flatnonzero((columns["rank"] == rank) & (columns["group"] == group) & known)
            own = own[np.argsort(columns["seq"][own], kind="stable")]
            queue[own] = np.maximum(0, _second_largest_before(completion[own]) - last[own])
    transfer = np.where(known, np.maximum(0, completion - last - queue), UNKNOWN)
    return {"wait_ns": np.maximum(0, wait), "queue_ns": queue, "transfer_ns": transfer}


def _second_largest_before(values: Ints) -> Ints:
    """For each position the second-largest of all earlier values, 0 where there are fewer."""
    if len(values) == 0:
        return values
    largest = np.maximum.accumulate(values)
    largest_before = np.concatenate([[0], largest[:-1]])
    displaced = np.minimum(values, largest_before)
    second = np.maximum.accumulate(displaced)
    return np.concatenate([[0], second[:-1]])
