"""A run packed for drawing: spans of the training threads, collectives, one span's details.

Times are milliseconds from the run's first moment. Spans and calls are sorted by rank and
begin; their position is their id, so that a link to one of them lasts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.grid import StepGrid, build_grid, median_of_others
from ddpdoctor.analysis.marked import Marks, build_marks
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.events import Flag, Op, Phase
from ddpdoctor.matching import is_matched

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MOST_SLOTS = 4  # overlapping collectives drawn one under the other; more share a line
NOT_STEP = -1
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Spans:
    """Stretches of the training threads in one phase."""

    id: Ints
    rank: Ints
    sync: Ints  # NOT_STEP outside the steps
    phase: Ints
    begin_ms: Floats
    end_ms: Floats

    def chosen(self, which: Bools) -> Spans:
        return Spans(
            self.id[which], self.rank[which], self.sync[which], self.phase[which],
            self.begin_ms[which], self.end_ms[which],
        )  # fmt: skip


@dataclass(frozen=True)
class Calls:
    """Collectives as each rank saw them: arrival, last arrival of all, completion.

    Where the last arrival is not known, `known` is 0 and `last_ms` equals `end_ms`. Of `slots`
    lines a call takes number `slot`, so that calls under way together do not cover each other.
    """

    id: Ints
    rank: Ints
    sync: Ints
    group: Ints
    seq: Ints
    op: Ints
    bucket: Ints
    nbytes: Ints
    begin_ms: Floats
    last_ms: Floats
    end_ms: Floats
    last_rank: Ints
    known: Ints
    slot: Ints
    slots: Ints
    numbered: Bools  # False for send, recv and calls that raised
    timed: Bools  # False where the end is that of the backward that waited for the call

    def chosen(self, which: Bools) -> Calls:
        return Calls(
            self.id[which], self.rank[which], self.sync[which], self.group[which],
            self.seq[which], self.op[which], self.bucket[which], self.nbytes[which],
            self.begin_ms[which], self.last_ms[which], self.end_ms[which],
            self.last_rank[which], self.known[which], self.slot[which], self.slots[which],
            self.numbered[which], self.timed[which],
        )  # fmt: skip


@dataclass(frozen=True)
class Timeline:
    """All that the timeline draws."""

    duration_ms: float
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    spans: Spans
    calls: Calls
    grid: StepGrid
    marks: Marks

    def window(self, begin_ms: float, end_ms: float) -> tuple[Spans, Calls]:
        """What overlaps this stretch of time, on all ranks."""
        spans, calls = self.spans, self.calls
        return (
            spans.chosen((spans.end_ms >= begin_ms) & (spans.begin_ms <= end_ms)),
            calls.chosen((calls.end_ms >= begin_ms) & (calls.begin_ms <= end_ms)),
        )


def build_timeline(analysis: Analysis) -> Timeline:
    tables = analysis.tables
    origin_ns, latest_ns = _extent(tables.segments, tables.collectives)
    grid = build_grid(analysis, origin_ns)
    infos = [trace.info for trace in analysis.run.ranks]
    return Timeline(
        (latest_ns - origin_ns) / _NS_PER_MS,
        tuple(info.rank for info in infos),
        tuple(info.host for info in infos),
        _spans(tables.segments, tables.steps, origin_ns, tables.clock.comparable),
        _calls(tables.collectives, tables.steps, origin_ns, latest_ns, tables.clock.comparable),
        grid,
        build_marks(analysis.run, tables, origin_ns),
    )


def _extent(segments: pd.DataFrame, collectives: pd.DataFrame) -> tuple[int, int]:
    begins = [
        frame[name].min()
        for frame, name in ((segments, "begin_ns"), (collectives, "arrival_ns"))
        if len(frame)
    ]
    ends = [
        frame[name].max()
        for frame, name in ((segments, "end_ns"), (collectives, "completion_ns"))
        if len(frame)
    ]
    return (int(min(begins)), int(max(ends))) if begins else (0, 0)


def _ints(frame: pd.DataFrame, column: str) -> Ints:
    return frame[column].to_numpy(np.int64)


def _sync_of(frame: pd.DataFrame, steps: pd.DataFrame) -> Ints:
    """The synchronised step of each row's own step."""
    index = pd.MultiIndex.from_arrays([frame["rank"], frame["step"]])
    known = steps.drop_duplicates(["rank", "step"]).set_index(["rank", "step"])["sync"]
    return known.reindex(index).fillna(NOT_STEP).to_numpy(np.int64)


def _spans(segments: pd.DataFrame, steps: pd.DataFrame, origin_ns: int, split: bool) -> Spans:
    frame = segments.sort_values(["rank", "begin_ns"], kind="stable")
    phase = _ints(frame, "phase")
    if not split:
        phase = np.where(np.isin(phase, (Phase.WAIT, Phase.TRANSFER)), Phase.BLOCKED, phase)
    return Spans(
        np.arange(len(frame)),
        _ints(frame, "rank"),
        _sync_of(frame, steps),
        phase,
        (_ints(frame, "begin_ns") - origin_ns) / _NS_PER_MS,
        (_ints(frame, "end_ns") - origin_ns) / _NS_PER_MS,
    )


def _calls(
    collectives: pd.DataFrame, steps: pd.DataFrame, origin_ns: int, latest_ns: int, split: bool
) -> Calls:
    frame = collectives.sort_values(["rank", "arrival_ns"], kind="stable")
    arrival = _ints(frame, "arrival_ns")
    end = np.where(_ints(frame, "completion_ns") >= 0, _ints(frame, "completion_ns"), latest_ns)
    known = frame["complete"].to_numpy(np.bool_) & split
    last = np.where(known, np.clip(_ints(frame, "last_arrival_ns"), arrival, end), end)
    slot, slots = _slots(_ints(frame, "rank"), arrival, end)
    return Calls(
        np.arange(len(frame)),
        _ints(frame, "rank"),
        _sync_of(frame, steps),
        _ints(frame, "group"),
        _ints(frame, "seq"),
        _ints(frame, "op"),
        _ints(frame, "bucket"),
        _ints(frame, "nbytes"),
        (arrival - origin_ns) / _NS_PER_MS,
        (last - origin_ns) / _NS_PER_MS,
        (end - origin_ns) / _NS_PER_MS,
        _ints(frame, "last_rank"),
        known.astype(np.int64),
        slot,
        slots,
        is_matched(_ints(frame, "flags"), _ints(frame, "group")),
        (_ints(frame, "flags") & Flag.UNTIMED) == 0,
    )


def _slots(rank: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Calls that are under way together form a cluster, and take its lines in turn."""
    count = len(rank)
    if not count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    new_rank = np.concatenate([[True], rank[1:] != rank[:-1]])
    # ranks laid end to end, so that one running maximum serves all of them
    shift = np.cumsum(new_rank) * (int(end.max()) - int(begin.min()) + 1)
    reach = np.maximum.accumulate(end + shift)
    fresh = np.concatenate([[True], (begin + shift)[1:] >= reach[:-1]])
    cluster = np.cumsum(fresh) - 1
    position = np.arange(count) - np.flatnonzero(fresh)[cluster]
    size = np.bincount(cluster)[cluster]
    return position % MOST_SLOTS, np.minimum(size, MOST_SLOTS)


@dataclass(frozen=True)
class SpanDetail:
    """One span, and what its rank spent in that phase of that step against the other ranks."""

    id: int
    rank: int
    host: str
    sync: int | None
    phase: Phase
    begin_ms: float
    duration_ms: float
    step_phase_ms: float | None  # all spans of this phase in the step
    median_phase_ms: float | None  # the same, median of the other ranks
    step_ms: float | None
    median_step_ms: float | None


@dataclass(frozen=True)
class Arrival:
    """When one rank arrived at a collective."""

    rank: int
    call: int
    begin_ms: float
    lateness_ms: float  # after the first arrival


@dataclass(frozen=True)
class CallDetail:
    """One collective on one rank, and the arrivals of all ranks at it. None is not measured."""

    id: int
    rank: int
    host: str
    sync: int | None
    op: Op
    bucket: int | None
    group: int
    seq: int
    nbytes: int
    begin_ms: float
    duration_ms: float
    wait_ms: float | None
    transfer_ms: float | None
    median_wait_ms: float | None
    median_transfer_ms: float | None
    last_rank: int | None
    spread_ms: float | None
    arrivals: tuple[Arrival, ...]


def span_detail(timeline: Timeline, span: int) -> SpanDetail | None:
    """None where there is no such span."""
    spans = timeline.spans
    if not 0 <= span < len(spans.id):
        return None
    rank, sync, phase = int(spans.rank[span]), int(spans.sync[span]), Phase(spans.phase[span])
    in_phase = _against_others(timeline.grid, timeline.grid.of_phase(phase), rank, sync)
    in_step = _against_others(timeline.grid, timeline.grid.step_ms, rank, sync)
    return SpanDetail(
        span, rank, _host(timeline, rank), _step_or_none(sync), phase,
        float(spans.begin_ms[span]), float(spans.end_ms[span] - spans.begin_ms[span]),
        *in_phase, *in_step,
    )  # fmt: skip


def _against_others(
    grid: StepGrid, cells: Floats, rank: int, sync: int
) -> tuple[float | None, float | None]:
    column = np.flatnonzero(grid.syncs == sync)
    row = np.flatnonzero(grid.ranks == rank)
    if not len(column) or not len(row):
        return None, None
    of_step = cells[:, column]
    own, median = of_step[row[0], 0], median_of_others(of_step)[row[0], 0]
    return _or_none(own), _or_none(median)


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def call_detail(timeline: Timeline, call: int) -> CallDetail | None:
    """None where there is no such call."""
    calls = timeline.calls
    if not 0 <= call < len(calls.id):
        return None
    rank, known = int(calls.rank[call]), bool(calls.known[call])
    timed = known and bool(calls.timed[call])
    same = calls.chosen(_same_collective(calls, call))
    first = float(same.begin_ms.min())
    wait = same.last_ms - same.begin_ms
    transfer = same.end_ms - same.last_ms
    own = int(np.flatnonzero(same.id == call)[0])
    return CallDetail(
        call, rank, _host(timeline, rank), _step_or_none(int(calls.sync[call])),
        Op(calls.op[call]),
        int(calls.bucket[call]) if calls.bucket[call] >= 0 else None,
        int(calls.group[call]), int(calls.seq[call]), int(calls.nbytes[call]),
        float(calls.begin_ms[call]), float(calls.end_ms[call] - calls.begin_ms[call]),
        float(wait[own]) if known else None,
        float(transfer[own]) if timed else None,
        _or_none(median_of_others(wait[:, None])[own, 0]) if known else None,
        _or_none(median_of_others(transfer[:, None])[own, 0]) if timed else None,
        int(calls.last_rank[call]) if known else None,
        float(same.begin_ms.max()) - first if known else None,
        _arrivals(same),
    )  # fmt: skip


def _arrivals(calls: Calls) -> tuple[Arrival, ...]:
    """In the order of time."""
    order = np.argsort(calls.begin_ms, kind="stable")
    first = float(calls.begin_ms[order[0]])
    return tuple(
        Arrival(
            int(calls.rank[i]), int(calls.id[i]), float(calls.begin_ms[i]),
            float(calls.begin_ms[i]) - first,
        )
        for i in order
    )  # fmt: skip


def _same_collective(calls: Calls, call: int) -> Bools:
    if not calls.numbered[call]:
        return np.asarray(calls.id == call)
    same = (calls.group == calls.group[call]) & (calls.seq == calls.seq[call]) & calls.numbered
    return np.asarray(same)


def _host(timeline: Timeline, rank: int) -> str:
    return timeline.hosts[timeline.ranks.index(rank)]


def _step_or_none(sync: int) -> int | None:
    return sync if sync != NOT_STEP else None
