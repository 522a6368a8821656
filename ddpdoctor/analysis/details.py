"""The numbers of one span or collective, against those of the other ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddpdoctor.analysis.grid import StepGrid, median_of_others
from ddpdoctor.analysis.ragged import Floats, Ints
from ddpdoctor.analysis.timeline import NOT_STEP, Calls, Timeline
from ddpdoctor.events import Op, Phase


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
    same = calls.chosen(same_collective(calls, call))
    first = float(same.begin_ms.min())
    wait = same.wait_ms.astype(np.float64)
    transfer = same.length_ms - wait
    own = int(np.flatnonzero(same.id == call)[0])
    bucket = int(same.bucket[own])
    return CallDetail(
        call, rank, _host(timeline, rank), _step_or_none(int(calls.sync[call])),
        Op(int(same.op[own])), bucket if bucket >= 0 else None,
        int(same.group[own]), int(calls.seq[call]), int(same.nbytes[own]),
        float(calls.begin_ms[call]), float(calls.length_ms[call]),
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


def same_collective(calls: Calls, call: int) -> Ints:
    """The calls of all ranks at the collective of this one."""
    if not calls.numbered[call]:
        return np.array([call])
    near = np.flatnonzero(calls.seq == calls.seq[call])
    group = calls.kinds.group[calls.kind[near]]
    own = calls.kinds.group[calls.kind[call]]
    return np.asarray(near[(group == own) & calls.numbered[near]])


def _host(timeline: Timeline, rank: int) -> str:
    return timeline.hosts[timeline.ranks.index(rank)]


def _step_or_none(sync: int) -> int | None:
    return sync if sync != NOT_STEP else None
