"""Tiles the training thread's time of one rank by its innermost phase (design §4).

All edges of spans, steps and blocked stretches cut the time into tiles; what covers a tile is
filled in from outside to inside. WAIT and TRANSFER are told apart at the last arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpdoctor.clocks import RankClock
from ddpdoctor.events import Flag, Kind, Phase
from ddpdoctor.parts import parts_of_steps
from ddpdoctor.recordedcalls import UNKNOWN, Recorded
from ddpdoctor.tracefile import RankTrace

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]

STEP_PHASES = (
    Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.WAIT, Phase.TRANSFER, Phase.OPTIMIZER,
    Phase.BETWEEN,
)  # fmt: skip
_NOWHERE = -(2**62)  # no key of a step and phase
_NONE = -1


@dataclass(frozen=True)
class Segments:
    """Stretches in one phase. `step` is an index into the steps of the rank, -1 outside."""

    step: Ints
    phase: Small
    begin: Ints
    end: Ints
    hidden: Ints  # ns of it in which a transfer was under way


class Tiling:
    """The time of one rank: its steps, and the segments that tile them.

    `last_ns` is when the last rank had arrived at each of its calls.
    """

    def __init__(self, trace: RankTrace, own: Recorded, last_ns: Ints, clock: RankClock) -> None:
        self._trace, self._own, self._last_ns = trace, own, last_ns
        spans = _Spans.of(trace, clock, own)
        self.latest_ns = spans.latest_ns
        records = trace.of_kind(Kind.STEP)
        self._records = records[np.argsort(records["begin_ns"], kind="stable")]
        self._number = self._records["step"].astype(np.int64)
        self._begin = clock.to_common(self._records["begin_ns"])
        self._end = clock.to_common(self._records["end_ns"])
        self._segments = self._tiled(
            spans, _blocked(spans, own, last_ns, self._came_back(clock, spans.latest_ns))
        )

    def _came_back(self, clock: RankClock, latest_ns: int) -> Ints:
        """When each call that blocks came back, where its completion is not known."""
        blocking = np.flatnonzero(self._own.flags & int(Flag.BLOCKING))
        if not len(blocking):
            return blocking
        rows = np.flatnonzero(self._trace.kind == int(Kind.COLLECTIVE))[blocking]
        issued = self._trace.detail["issued_ns"][rows]
        return np.where(issued > 0, clock.to_common(issued), latest_ns)

    def _tiled(self, spans: _Spans, blocked: _Blocked) -> Segments:
        """Neighbours of one phase and step become one segment."""
        edges = [times for at in spans.by_depth for times in _edges(at.begin, at.end)]
        edges += [blocked.begin, blocked.split, blocked.end, *_edges(self._begin, self._end)]
        times = _distinct(np.concatenate(edges))
        count = max(0, len(times) - 1)
        phase = np.full(count, Phase.BETWEEN, np.int8)
        known = np.zeros(count, np.bool_)  # elsewhere no step was recorded in detail
        for at in spans.by_depth:
            inside = filled(times, at.begin, at.end, at.phase)[:count]
            covered = inside != _NONE
            np.copyto(phase, inside, where=covered)
            known |= covered
        inside = filled(times, *blocked.halves())[:count]
        np.copyto(phase, inside, where=inside != _NONE)
        index = filled(times, self._begin, self._end, np.arange(len(self._begin)))[:count]
        known |= index != _NONE
        key = np.where(known, index * len(Phase) + phase, _NOWHERE)
        first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]])[:count])
        bounds = times[np.append(first, count)] if count else times[:1]
        transfers = union(self._last_ns, self._own.completion_ns)
        hidden = np.diff(covered_until(*transfers, bounds))
        kept = known[first]
        first, begin, end = first[kept], bounds[:-1][kept], bounds[1:][kept]
        return Segments(index[first], phase[first], begin, end, hidden[kept])

    def step_at(self, times: Ints) -> Ints:
        """Step number of each moment, -1 outside the steps."""
        return self._number_of(self._index_of_step(times))

    def _number_of(self, index: Ints) -> Ints:
        if not len(self._number):
            return np.full(len(index), _NONE)
        return np.where(index >= 0, self._number[index], _NONE)

    def _index_of_step(self, times: Ints) -> Ints:
        if (times[1:] >= times[:-1]).all():
            return filled(times, self._begin, self._end, np.arange(len(self._begin)))
        inside, index = covering(self._begin, self._end, times)
        return np.where(inside, index, _NONE)

    def segments(self) -> dict[str, npt.NDArray[Any]]:
        """Columns of `SegmentRow`."""
        found = self._segments
        return {
            "rank": np.full(len(found.begin), self._trace.info.rank, np.int32),
            "step": narrow(self._number_of(found.step)),
            "phase": found.phase,
            "begin_ns": found.begin,
            "end_ns": found.end,
        }

    def steps(self) -> dict[str, npt.NDArray[Any]]:
        """Columns of `StepRow`."""
        steps, found = len(self._number), self._segments
        inside = found.step >= 0
        index, phase = found.step[inside], found.phase[inside]
        lasts = (found.end - found.begin)[inside]
        spent = _sum_by(index * len(Phase) + phase, lasts, steps * len(Phase))
        spent = spent.reshape(steps, len(Phase))
        local = (phase != int(Phase.WAIT)) & (phase != int(Phase.TRANSFER))
        overlapped = _sum_by(index, found.hidden[inside] * local, steps)
        untimed = self._own.arrival_ns[(self._own.flags & int(Flag.UNTIMED)) > 0]
        untimed = self._index_of_step(untimed)
        overlapped[untimed[untimed >= 0]] = UNKNOWN
        columns: dict[str, npt.NDArray[Any]] = {
            "rank": np.full(steps, self._trace.info.rank, np.int32),
            "step": self._number,
            "sync": self._records["sync"].astype(np.int64),
            "begin_ns": self._begin,
            "end_ns": self._end,
            "step_ns": self._end - self._begin,
            "overlapped_ns": overlapped,
        }
        columns |= {f"{phase.label}_ns": spent[:, phase] for phase in STEP_PHASES}
        return columns | parts_of_steps(self._trace, self._records)


def _edges(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Mostly the end of one is the begin of the next, which is an edge once."""
    return begin, end[np.append(end[:-1] != begin[1:], True)[: len(end)]]


def narrow(numbers: Ints) -> npt.NDArray[Any]:
    """In half of the room where they fit, as they mostly do; there may be tens of millions."""
    fits = int(numbers.max(initial=0)) <= np.iinfo(np.int32).max
    return numbers.astype(np.int32) if fits else numbers


def _distinct(times: Ints) -> Ints:
    """As np.unique, which hashes integers before it sorts them."""
    times.sort()
    fresh = np.ones(len(times), np.bool_)
    np.not_equal(times[1:], times[:-1], out=fresh[1:])
    return times[fresh]


def _sum_by(key: Ints, values: Ints, length: int) -> Ints:
    return np.bincount(key, weights=values, minlength=length).astype(np.int64)


@dataclass(frozen=True)
class _SpansOfDepth:
    begin: Ints
    end: Ints
    phase: Small


@dataclass(frozen=True)
class _Spans:
    """Spans of one rank by nesting depth; those of one depth do not overlap."""

    by_depth: list[_SpansOfDepth]
    blocked: _SpansOfDepth
    latest_ns: int

    @classmethod
    def of(cls, trace: RankTrace, clock: RankClock, own: Recorded) -> _Spans:
        records = trace.of_kind(Kind.SPAN, Kind.WAIT)
        begin, end = clock.to_common(records["begin_ns"]), clock.to_common(records["end_ns"])
        ended = records["end_ns"] > 0
        latest = max(begin.max(initial=0), end[ended].max(initial=0), own.latest_ns)
        end = np.where(ended, end, latest)
        phase = records["code"].astype(np.int8)
        phase[(records["flags"] & int(Flag.NO_GRAD)) > 0] = Phase.BETWEEN
        is_blocked = phase == int(Phase.BLOCKED)
        depth = records["depth"]

        def choose(which: Bools) -> _SpansOfDepth:
            chosen = _SpansOfDepth(begin[which], end[which], phase[which])
            if (chosen.begin[1:] >= chosen.begin[:-1]).all():
                return chosen
            order = np.argsort(chosen.begin, kind="stable")
            return _SpansOfDepth(chosen.begin[order], chosen.end[order], chosen.phase[order])

        depths = np.flatnonzero(np.bincount(depth[~is_blocked]))
        return cls([choose(~is_blocked & (depth == d)) for d in depths], choose(is_blocked), latest)


@dataclass(frozen=True)
class _Blocked:
    """Intervals in which the training thread stands in a collective: wait until `split`."""

    begin: Ints
    split: Ints
    end: Ints

    def halves(self) -> tuple[Ints, Ints, Small]:
        """Begin, end and phase of each wait and the transfer after it."""
        phases = np.array([Phase.WAIT, Phase.TRANSFER], np.int8)
        return (
            np.stack([self.begin, self.split], axis=1).ravel(),
            np.stack([self.split, self.end], axis=1).ravel(),
            np.tile(phases, len(self.begin)),
        )


def _blocked(spans: _Spans, own: Recorded, last: Ints, came_back: Ints) -> _Blocked:
    """Backward's finalisation and blocking calls, overlapping ones joined (design §4).

    L is the last arrival over the collectives outstanding there. One that completed earlier has
    its last arrival before the interval, so the running maximum over all that were issued
    serves, clamped to the interval. A call whose completion was not measured has come back.
    """
    blocking = np.flatnonzero(own.flags & int(Flag.BLOCKING))
    completion = own.completion_ns[blocking]
    completion = np.where(completion >= 0, completion, came_back)
    begin, end = union(
        np.concatenate([spans.blocked.begin, own.arrival_ns[blocking]]),
        np.concatenate([spans.blocked.end, completion]),
    )
    arrivals = own.arrival_ns
    if (arrivals[1:] < arrivals[:-1]).any():
        by_arrival = np.argsort(arrivals, kind="stable")
        arrivals, last = arrivals[by_arrival], last[by_arrival]
    if not len(arrivals):
        return _Blocked(begin, begin, end)
    last = np.maximum.accumulate(last)
    issued = np.searchsorted(arrivals, end, "right") - 1
    known = np.where(issued >= 0, last[issued], 0)
    return _Blocked(begin, np.minimum(np.maximum(known, begin), end), end)


def union(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Disjoint intervals that cover the same time; empty and unknown ones dropped."""
    real = end > begin
    if not real.all():
        begin, end = begin[real], end[real]
    if (begin[1:] < begin[:-1]).any():
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
    if not len(begin):
        return begin, end
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate([[True], begin[1:] > reach[:-1]]))
    last = np.append(first[1:] - 1, len(begin) - 1)
    return begin[first], reach[last]


def covering(begin: Ints, end: Ints, times: Ints) -> tuple[Bools, Ints]:
    """For each time, whether one of the sorted intervals covers it, and which."""
    if not len(begin):
        return np.zeros(len(times), np.bool_), np.zeros(len(times), np.int64)
    index = np.searchsorted(begin, times, "right") - 1
    place = np.maximum(index, 0)
    return (index >= 0) & (end[place] > times), place


def filled(times: Ints, begin: Ints, end: Ints, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """At each of these times, which rise, the value of the sorted interval that covers it; or -1.

    As `covering`, but the few intervals are looked up among the times. Of intervals that overlap
    the one that began last counts.
    """
    count = len(times)
    first = np.searchsorted(times, begin)
    last = np.maximum(np.searchsorted(times, end), first)
    last[:-1] = np.minimum(last[:-1], first[1:])
    bounds = np.zeros(2 * len(begin) + 2, np.int64)
    bounds[1:-1:2], bounds[2::2], bounds[-1] = first, last, count
    told = np.empty(len(bounds) - 1, values.dtype)
    told[0::2], told[1::2] = _NONE, values
    return np.asarray(np.repeat(told, bounds[1:] - bounds[:-1]))


def covered_until(begin: Ints, end: Ints, times: Ints) -> Ints:
    """How much of the time before each moment these sorted disjoint intervals cover."""
    if not len(begin):
        return np.zeros(len(times), np.int64)
    lasts = end - begin
    index = np.maximum(np.searchsorted(begin, times, "right") - 1, 0)
    before = np.cumsum(lasts) - lasts
    return np.asarray(before[index] + np.minimum(np.maximum(times - begin[index], 0), lasts[index]))
