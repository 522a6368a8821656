"""A run as checked DataFrames on the common clock: steps, segments, collectives.

Each frame is built from one row class, whose field names are its columns. A segment is a
stretch of the training thread in one phase; the segments of a rank tile the steps that were
recorded in detail, and WAIT and TRANSFER are already told apart in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.clocks import CommonClock, RankClock, common_clock
from ddpdoctor.events import Flag, Kind, Phase
from ddpdoctor.matching import UNKNOWN, Collectives, match
from ddpdoctor.parts import named_columns, parts_of_steps, pause_columns
from ddpdoctor.tracefile import RankTrace, Records, Run

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Columns = Mapping[str, npt.NDArray[Any]]

STEP_PHASES = (
    Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.WAIT, Phase.TRANSFER, Phase.OPTIMIZER,
    Phase.BETWEEN,
)  # fmt: skip


@dataclass(frozen=True)
class StepRow:
    """One step of one rank. The seven terms add up to `step_ns`; `sync` aligns ranks.

    `overlapped_ns` is beside the sum, and -1 where completions were not stamped. What follows it
    is *of* the sum, whichever phase it falls into, and -1 where it was not measured: see
    `events.Part`.
    """

    rank: int
    step: int
    sync: int
    begin_ns: int
    end_ns: int
    input_ns: int
    forward_ns: int
    backward_ns: int
    wait_ns: int
    transfer_ns: int
    optimizer_ns: int
    between_ns: int
    step_ns: int
    overlapped_ns: int
    run_queue_ns: int
    gc_ns: int
    throttled_ns: int
    io_ns: int
    io_pressure_ns: int
    cpu_pressure_ns: int
    h2d_ns: int


@dataclass(frozen=True)
class SegmentRow:
    """One stretch of a rank's training thread in one phase (a `Phase`); `step` is -1 outside."""

    rank: int
    step: int
    phase: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class CollectiveRow:
    """One collective on one rank. Times that are not known are -1.

    `complete` says that every rank of the group was seen to arrive. `last_rank` arrived last;
    `caused_ns` is last minus second-last arrival.
    """

    rank: int
    group: int
    seq: int
    op: int
    flags: int
    bucket: int
    step: int
    sync: int
    site: int
    nbytes: int
    arrival_ns: int
    issued_ns: int
    completion_ns: int
    first_arrival_ns: int
    last_arrival_ns: int
    last_rank: int
    caused_ns: int
    complete: bool
    wait_ns: int
    queue_ns: int
    transfer_ns: int


@dataclass(frozen=True)
class PauseRow:
    """One garbage collection of a millisecond or more, on the training thread."""

    rank: int
    step: int
    generation: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class NamedRow:
    """One span of the user's, or several short ones of a step: then `spent_ns` is their sum.

    `name` is a number of the rank's own; its text is in the rank's `names`.
    """

    rank: int
    step: int
    name: int
    begin_ns: int
    end_ns: int
    spent_ns: int
    spans: int


@dataclass(frozen=True)
class Tables:
    """The frames of a run. `clock.comparable` says whether waits mean anything across ranks."""

    steps: pd.DataFrame
    segments: pd.DataFrame
    collectives: pd.DataFrame
    clock: CommonClock
    pauses: pd.DataFrame
    named: pd.DataFrame


def build_tables(run: Run) -> Tables:
    """Bring the ranks of a run onto one clock and into frames."""
    clock = common_clock(run.ranks)
    matched = match(run.ranks, clock)
    parts: dict[type, list[Columns]] = {
        row: [] for row in (StepRow, SegmentRow, PauseRow, NamedRow)
    }
    for trace in run.ranks:
        rank = trace.info.rank
        own = matched.of_rank(rank)
        timeline = _Timeline(trace, own, clock.ranks[rank])
        parts[SegmentRow].append(timeline.segments())
        parts[StepRow].append(timeline.steps())
        parts[PauseRow].append(pause_columns(trace, clock.ranks[rank]))
        parts[NamedRow].append(named_columns(trace, clock.ranks[rank], timeline.latest_ns))
        own.step[:] = timeline.step_at(own.arrival_ns)
    return Tables(
        _joined(StepRow, parts.pop(StepRow)),
        _joined(SegmentRow, parts.pop(SegmentRow)),
        _frame(CollectiveRow, matched.columns()),
        clock,
        _joined(PauseRow, parts.pop(PauseRow)),
        _joined(NamedRow, parts.pop(NamedRow)),
    )


def _joined(row: type, parts: list[Columns]) -> pd.DataFrame:
    """One frame of the columns of all ranks, one rank after the other."""
    return _frame(row, {name: np.concatenate([p[name] for p in parts]) for name in parts[0]})


def _frame(row: type, columns: Columns) -> pd.DataFrame:
    """A frame with exactly the columns of the row class, in their order."""
    names = [field.name for field in fields(row)]
    if set(names) != set(columns):
        raise TypeError(f"{row.__name__}: columns differ: {set(names) ^ set(columns)}")
    return pd.DataFrame({name: columns[name] for name in names}, copy=False)


class _Timeline:
    """Tiles the training thread's time of one rank by its innermost phase."""

    def __init__(self, trace: RankTrace, own: Collectives, clock: RankClock) -> None:
        self._rank = trace.info.rank
        detail = trace.detail
        self._spans = _Spans.of(detail, clock, own)
        self.latest_ns = self._spans.latest_ns
        blocked = _blocked(self._spans, own)
        step_records = detail[detail["kind"] == Kind.STEP]
        step_records = step_records[np.argsort(step_records["begin_ns"], kind="stable")]
        self._step_number = step_records["step"].astype(np.int64)
        self._step_sync = step_records["sync"].astype(np.int64)
        self._step_begin = clock.to_common(step_records["begin_ns"])
        self._step_end = clock.to_common(step_records["end_ns"])
        self._parts = parts_of_steps(trace, step_records)
        transfers = _union(own.last_arrival_ns, own.completion_ns)
        self._times = _distinct(
            np.concatenate(
                [
                    *(edges for spans in self._spans.by_depth for edges in (spans.begin,
                    spans.end)), blocked.begin, blocked.split, blocked.end,
                    self._step_begin, self._step_end, *transfers,
                ]
            )
        )  # fmt: skip
        at = self._times[:-1]
        self._phase = np.full(len(at), Phase.BETWEEN, np.int64)
        self._known = np.zeros(len(at), np.bool_)  # elsewhere no step was recorded in detail
        for spans in self._spans.by_depth:
            inside, index = _covering_in_order(spans.begin, spans.end, at)
            self._phase[inside] = spans.phase[index[inside]]
            self._known |= inside
        inside, index = _covering_in_order(blocked.begin, blocked.end, at)
        waiting = at[inside] < blocked.split[index[inside]]
        self._phase[inside] = np.where(waiting, Phase.WAIT, Phase.TRANSFER)
        self._outstanding = _covering_in_order(*transfers, at)[0]
        inside, index = _covering_in_order(self._step_begin, self._step_end, at)
        self._step_index = np.where(inside, index, -1)
        self._untimed = own.arrival_ns[(own.flags & Flag.UNTIMED) > 0]
        self._known |= self._step_index >= 0

    def step_at(self, times: Ints) -> Ints:
        """Step number of each moment, -1 outside the steps."""
        index = self._index_of_step(times)
        if not len(self._step_number):
            return index
        return np.where(index >= 0, self._step_number[index], -1)

    def _index_of_step(self, times: Ints) -> Ints:
        inside, index = _covering(self._step_begin, self._step_end, times)
        return np.where(inside, index, -1)

    def segments(self) -> Columns:
        """Neighbours of one phase and step become one segment."""
        count = len(self._phase)
        if count == 0:
            return dict.fromkeys(_names(SegmentRow), np.empty(0, np.int64))
        key = np.where(self._known, self._step_index * len(Phase) + self._phase, _NOWHERE)
        first = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        ends = np.concatenate([first[1:], [count]])
        known = self._known[first]
        first, ends = first[known], ends[known]
        return {
            "rank": np.full(len(first), self._rank),
            "step": self.step_at(self._times[first]),
            "phase": self._phase[first],
            "begin_ns": self._times[first],
            "end_ns": self._times[ends],
        }

    def steps(self) -> Columns:
        steps = len(self._step_number)
        inside = self._step_index >= 0
        duration = np.diff(self._times)[inside]
        key = self._step_index[inside] * len(Phase) + self._phase[inside]
        spent = _sum_by(key, duration, steps * len(Phase)).reshape(steps, len(Phase))
        local = ~np.isin(self._phase[inside], (Phase.WAIT, Phase.TRANSFER))
        hidden = duration * (self._outstanding[inside] & local)
        overlapped = _sum_by(self._step_index[inside], hidden, steps)
        untimed = self._index_of_step(self._untimed)
        overlapped[untimed[untimed >= 0]] = UNKNOWN
        columns: dict[str, Ints] = {
            "rank": np.full(steps, self._rank),
            "step": self._step_number,
            "sync": self._step_sync,
            "begin_ns": self._step_begin,
            "end_ns": self._step_end,
            "step_ns": self._step_end - self._step_begin,
            "overlapped_ns": overlapped,
        }
        columns |= {f"{phase.label}_ns": spent[:, phase] for phase in STEP_PHASES}
        return columns | self._parts


_NOWHERE = -(2**62)  # no key of a step and phase


def _distinct(times: Ints) -> Ints:
    """As np.unique, which hashes integers before it sorts them."""
    times.sort(kind="stable")  # they come in runs that rise, which this sort joins
    fresh = np.ones(len(times), np.bool_)
    np.not_equal(times[1:], times[:-1], out=fresh[1:])
    return times[fresh]


def _names(row: type) -> list[str]:
    return [field.name for field in fields(row)]


def _sum_by(key: Ints, values: Ints, length: int) -> Ints:
    return np.bincount(key, weights=values, minlength=length).astype(np.int64)


@dataclass(frozen=True)
class _SpansOfDepth:
    begin: Ints
    end: Ints
    phase: Ints


@dataclass(frozen=True)
class _Spans:
    """Spans of one rank by nesting depth; those of one depth do not overlap."""

    by_depth: list[_SpansOfDepth]
    blocked: _SpansOfDepth
    latest_ns: int

    @classmethod
    def of(cls, detail: Records, clock: RankClock, own: Collectives) -> _Spans:
        records = detail[np.isin(detail["kind"], (Kind.SPAN, Kind.WAIT))]
        begin, end = clock.to_common(records["begin_ns"]), clock.to_common(records["end_ns"])
        ended = records["end_ns"] > 0
        latest = max(begin.max(initial=0), end[ended].max(initial=0), own.latest_ns)
        end = np.where(ended, end, latest)
        phase = records["code"].astype(np.int64)
        phase[(records["flags"] & Flag.NO_GRAD) > 0] = Phase.BETWEEN
        is_blocked = phase == Phase.BLOCKED
        depth = records["depth"]

        def choose(which: Bools) -> _SpansOfDepth:
            order = np.argsort(begin[which], kind="stable")
            return _SpansOfDepth(begin[which][order], end[which][order], phase[which][order])

        depths = np.unique(depth[~is_blocked])
        return cls([choose(~is_blocked & (depth == d)) for d in depths], choose(is_blocked), latest)


@dataclass(frozen=True)
class _Blocked:
    """Intervals in which the training thread stands in a collective: wait until `split`."""

    begin: Ints
    split: Ints
    end: Ints


def _blocked(spans: _Spans, own: Collectives) -> _Blocked:
    """Backward's finalisation and blocking calls, overlapping ones joined (design §4).

    L is the last arrival over the collectives outstanding there. One that completed earlier has
    its last arrival before the interval, so the running maximum over all that were issued
    serves, clamped to the interval. A call whose completion was not measured has come back.
    """
    blocking = (own.flags & Flag.BLOCKING) > 0
    came_back = np.where(own.issued_ns >= 0, own.issued_ns, spans.latest_ns)
    completion = np.where(own.completion_ns >= 0, own.completion_ns, came_back)
    begin, end = _union(
        np.concatenate([spans.blocked.begin, own.arrival_ns[blocking]]),
        np.concatenate([spans.blocked.end, completion[blocking]]),
    )
    by_arrival = np.argsort(own.arrival_ns, kind="stable")
    arrivals = own.arrival_ns[by_arrival]
    last = np.maximum.accumulate(own.last_arrival_ns[by_arrival]) if len(arrivals) else arrivals
    issued = np.searchsorted(arrivals, end, "right") - 1
    known = np.where(issued >= 0, last[issued] if len(last) else 0, 0)
    return _Blocked(begin, np.clip(known, begin, end), end)


def _union(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Disjoint intervals that cover the same time; empty and unknown ones dropped."""
    real = end > begin
    order = np.argsort(begin[real], kind="stable")
    begin, end = begin[real][order], end[real][order]
    if not len(begin):
        return begin, end
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], begin[1:] > reach[:-1]])
    last = np.concatenate([np.flatnonzero(first)[1:] - 1, [len(begin) - 1]])
    return begin[first], reach[last]


def _covering(begin: Ints, end: Ints, times: Ints) -> tuple[Bools, Ints]:
    """For each time, whether one of the sorted disjoint intervals covers it, and which."""
    if not len(begin):
        return np.zeros(len(times), np.bool_), np.zeros(len(times), np.int64)
    return _is_covered(end, np.searchsorted(begin, times, "right") - 1, times)


def _covering_in_order(begin: Ints, end: Ints, times: Ints) -> tuple[Bools, Ints]:
    """The same for times that rise: few intervals are looked up among them, and then counted."""
    if not len(begin):
        return np.zeros(len(times), np.bool_), np.zeros(len(times), np.int64)
    begins_at = np.searchsorted(times, begin)
    began = np.bincount(begins_at, minlength=len(times) + 1)[: len(times)]
    return _is_covered(end, np.cumsum(began) - 1, times)


def _is_covered(end: Ints, index: Ints, times: Ints) -> tuple[Bools, Ints]:
    place = np.maximum(index, 0)
    return (index >= 0) & (end[place] > times), place
