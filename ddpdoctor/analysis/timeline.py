"""A run packed for drawing: spans of the training threads, and collectives.

Times are milliseconds from the run's first moment. Spans and calls are sorted by rank and
begin; their position is their id, so that a link to one of them lasts. The columns are as narrow
as they can be: a run may have tens of millions of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.grid import StepGrid, build_grid
from ddpdoctor.analysis.marked import Marks, build_marks
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.ragged import Floats, Ints, Numbers, Ragged, running_reach, starts_of
from ddpdoctor.events import Flag, Phase, Stall
from ddpdoctor.recordedcalls import is_matched

Bools = npt.NDArray[np.bool_]

MOST_SLOTS = 4  # overlapping collectives drawn one under the other; more share a line
NOT_STEP = -1
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Spans:
    """Stretches of the training threads in one phase. Those of a rank do not overlap."""

    id: Numbers
    rank: Numbers
    sync: Numbers  # NOT_STEP outside the steps
    phase: Numbers
    begin_ms: Floats
    end_ms: Floats

    def chosen(self, which: Bools | Ints) -> Spans:
        return Spans(
            self.id[which], self.rank[which], self.sync[which], self.phase[which],
            self.begin_ms[which], self.end_ms[which],
        )  # fmt: skip


@dataclass(frozen=True)
class CallKinds:
    """What the calls of a run are alike in: many calls, few kinds."""

    group: Numbers
    op: Numbers
    bucket: Numbers  # -1 for none
    nbytes: Numbers


@dataclass(frozen=True)
class Calls:
    """Collectives as each rank saw them: arrival, last arrival of all, completion.

    Where the last arrival is not known, `known` is False and the wait is all of the call. Of
    `slots` lines a call takes number `slot`, so that calls under way together do not cover each
    other.
    """

    id: Numbers
    rank: Numbers
    sync: Numbers
    seq: Numbers
    kind: Numbers  # index into `kinds`
    begin_ms: Floats
    wait_ms: Numbers  # from the begin
    length_ms: Numbers
    last_rank: Numbers
    known: Bools
    slot: Numbers
    slots: Numbers
    numbered: Bools  # False for send, recv and calls that raised
    timed: Bools  # False where the end is that of the backward that waited for the call
    kinds: CallKinds

    @property
    def last_ms(self) -> Floats:
        return np.asarray(self.begin_ms + self.wait_ms)

    @property
    def end_ms(self) -> Floats:
        return np.asarray(self.begin_ms + self.length_ms)

    @property
    def group(self) -> Numbers:
        return np.asarray(self.kinds.group[self.kind])

    @property
    def op(self) -> Numbers:
        return np.asarray(self.kinds.op[self.kind])

    @property
    def bucket(self) -> Numbers:
        return np.asarray(self.kinds.bucket[self.kind])

    @property
    def nbytes(self) -> Numbers:
        return np.asarray(self.kinds.nbytes[self.kind])

    def chosen(self, which: Bools | Ints) -> Calls:
        return Calls(
            self.id[which], self.rank[which], self.sync[which], self.seq[which], self.kind[which],
            self.begin_ms[which], self.wait_ms[which], self.length_ms[which],
            self.last_rank[which], self.known[which], self.slot[which], self.slots[which],
            self.numbered[which], self.timed[which], self.kinds,
        )  # fmt: skip


@dataclass(frozen=True)
class Timeline:
    """All that the timeline draws. Rows are the ranks in their order."""

    duration_ms: float
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    spans: Spans
    calls: Calls
    grid: StepGrid
    marks: Marks
    clock_error_ms: float | None = 0.0  # None: the ranks' clocks cannot be compared
    stands: bool = False  # its end is that of ranks that noted that they stand still

    @cached_property
    def rows(self) -> Ints:
        return np.arange(len(self.ranks))

    @cached_property
    def span_rows(self) -> Ragged:
        spans = self.spans
        starts = starts_of(self.row_of(spans.rank), len(self.ranks))
        return Ragged(starts, spans.begin_ms, spans.end_ms)

    @cached_property
    def call_rows(self) -> Ragged:
        calls = self.calls
        starts = starts_of(self.row_of(calls.rank), len(self.ranks))
        return Ragged(starts, calls.begin_ms, running_reach(calls.rank, calls.end_ms))

    def row_of(self, rank: Numbers) -> Ints:
        return np.searchsorted(np.asarray(self.ranks, np.int64), rank)

    def window(
        self, begin_ms: float, end_ms: float, rows: Ints | None = None, *, with_calls: bool = True
    ) -> tuple[Spans, Calls]:
        """What overlaps this stretch of time, by default on all ranks."""
        chosen = self.rows if rows is None else rows
        spans = self.span_rows.overlapping(chosen, begin_ms, end_ms).indices()
        asked = chosen if with_calls else chosen[:0]
        calls = self.calls.chosen(self.call_rows.overlapping(asked, begin_ms, end_ms).indices())
        return self.spans.chosen(spans), calls.chosen(calls.end_ms >= begin_ms)


def build_timeline(analysis: Analysis) -> Timeline:
    tables = analysis.tables
    clock = tables.clock
    origin_ns, recorded_ns = _extent(tables.segments, tables.collectives)
    infos = [trace.info for trace in analysis.run.ranks]
    standing = {trace.info.rank: trace.stall for trace in analysis.run.ranks if trace.stall}
    stood_s = max((stall.seconds for stall in standing.values()), default=0.0)
    latest_ns = recorded_ns + int(stood_s * 1e9)
    spans = _spans(tables.segments, tables.steps, origin_ns, clock.comparable)
    return Timeline(
        (latest_ns - origin_ns) / _NS_PER_MS,
        tuple(info.rank for info in infos),
        tuple(info.host for info in infos),
        with_standing(spans, standing, (latest_ns - origin_ns) / _NS_PER_MS, clock.comparable),
        _calls(tables.collectives, tables.steps, origin_ns, latest_ns, clock.comparable),
        build_grid(analysis, origin_ns),
        build_marks(analysis.run, tables, origin_ns),
        clock.error_ns / _NS_PER_MS if clock.comparable else None,
        bool(standing),
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


def _by_rank_and(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Sorted by rank and time, which the tables of most runs are already."""
    rank, at = _ints(frame, "rank"), _ints(frame, column)
    ascends = (rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (at[1:] >= at[:-1]))
    return frame if ascends.all() else frame.iloc[np.lexsort((at, rank))]


def _sync_of(frame: pd.DataFrame, steps: pd.DataFrame) -> npt.NDArray[np.int32]:
    """The synchronised step of each row's own step."""
    wide = int(max(_ints(frame, "step").max(initial=0), _ints(steps, "step").max(initial=0))) + 2
    keys, first = np.unique(_ints(steps, "rank") * wide + _ints(steps, "step"), return_index=True)
    if not len(keys):
        return np.full(len(frame), NOT_STEP, np.int32)
    step = _ints(frame, "step")
    wanted = _ints(frame, "rank") * wide + step
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found = (keys[place] == wanted) & (step >= 0)
    return np.where(found, _ints(steps, "sync")[first][place], NOT_STEP).astype(np.int32)


def _spans(segments: pd.DataFrame, steps: pd.DataFrame, origin_ns: int, split: bool) -> Spans:
    frame = _by_rank_and(segments, "begin_ns")
    phase = _ints(frame, "phase")
    if not split:
        phase = np.where(np.isin(phase, (Phase.WAIT, Phase.TRANSFER)), Phase.BLOCKED, phase)
    return Spans(
        np.arange(len(frame), dtype=np.uint32),
        _ints(frame, "rank").astype(np.int32),
        _sync_of(frame, steps),
        phase.astype(np.uint8),
        (_ints(frame, "begin_ns") - origin_ns) / _NS_PER_MS,
        (_ints(frame, "end_ns") - origin_ns) / _NS_PER_MS,
    )


def with_standing(spans: Spans, standing: Mapping[int, Stall], end_ms: float, split: bool) -> Spans:
    """The spans, and where ranks stand still, up to the moment in which they noted it."""
    added = []
    for rank, stall in standing.items():
        own = np.flatnonzero(spans.rank == rank)
        begin = float(spans.end_ms[own[-1]]) if len(own) else 0.0
        is_wait = split and stall.phase is Phase.BLOCKED
        added.append((rank, Phase.WAIT if is_wait else stall.phase, begin, end_ms))
    if not added:
        return spans
    rank, phase, begins, ends = np.array(added, np.float64).T
    order = np.lexsort(
        (np.append(spans.begin_ms, begins), np.append(spans.rank, rank.astype(np.int32)))
    )
    return Spans(
        np.arange(len(order), dtype=np.uint32),
        np.append(spans.rank, rank.astype(np.int32))[order],
        np.append(spans.sync, np.full(len(rank), NOT_STEP, np.int32))[order],
        np.append(spans.phase, phase.astype(np.uint8))[order],
        np.append(spans.begin_ms, begins)[order],
        np.append(spans.end_ms, ends)[order],
    )


def _calls(
    collectives: pd.DataFrame, steps: pd.DataFrame, origin_ns: int, latest_ns: int, split: bool
) -> Calls:
    frame = _by_rank_and(collectives, "arrival_ns")
    arrival = _ints(frame, "arrival_ns")
    end = np.where(_ints(frame, "completion_ns") >= 0, _ints(frame, "completion_ns"), latest_ns)
    known = frame["complete"].to_numpy(np.bool_) & split
    last = np.where(known, np.clip(_ints(frame, "last_arrival_ns"), arrival, end), end)
    slot, slots = _slots(_ints(frame, "rank"), arrival, end)
    kind, kinds = _kinds(frame)
    return Calls(
        np.arange(len(frame), dtype=np.uint32),
        _ints(frame, "rank").astype(np.int32),
        _sync_of(frame, steps),
        _ints(frame, "seq").astype(np.uint32),
        kind,
        (arrival - origin_ns) / _NS_PER_MS,
        ((last - arrival) / _NS_PER_MS).astype(np.float32),
        ((end - arrival) / _NS_PER_MS).astype(np.float32),
        _ints(frame, "last_rank").astype(np.int32),
        known,
        slot.astype(np.uint8),
        slots.astype(np.uint8),
        is_matched(_ints(frame, "flags"), _ints(frame, "group")),
        (_ints(frame, "flags") & Flag.UNTIMED) == 0,
        kinds,
    )


def _kinds(frame: pd.DataFrame) -> tuple[Numbers, CallKinds]:
    columns = ["group", "op", "bucket", "nbytes"]
    kind = frame.groupby(columns, sort=False).ngroup().to_numpy(np.int64)
    _, first = np.unique(kind, return_index=True)
    values = [_ints(frame, column)[first] for column in columns]
    return kind.astype(np.int32), CallKinds(*values)


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
