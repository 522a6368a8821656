"""A run of any size as the timeline holds it: 6 spans and 14 buckets a step, with faults in it.

Ranks are ragged: some join late, some end early, and some spans are lost. Made without records, so
that it measures the dashboard alone; loading and analysing are another benchmark's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.grid import StepGrid
from ddpdoctor.analysis.marked import COLLECTION, Marks
from ddpdoctor.analysis.timeline import CallKinds, Calls, Spans, Timeline
from ddpdoctor.events import Op, Phase
from ddpdoctor.tables import STEP_PHASES

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PHASES = (
    Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.WAIT, Phase.TRANSFER, Phase.OPTIMIZER,
)  # fmt: skip
BUCKETS = 14
BUCKET_BYTES = 25 * 2**20
BUCKET_MS = 0.35
RANKS_PER_HOST = 8
LOST = 0.002  # of the spans
PARTIAL = 0.03  # of the ranks join late, and as many end early


@dataclass(frozen=True)
class Faults:
    """What is wrong with the run; all of it must be seen with all ranks on screen."""

    slow: int  # this rank takes a tenth longer in every backward
    stalling: tuple[int, ...]  # these now and then wait long for their input
    throttled: slice  # these ranks are slower for a while


@dataclass
class _Times:
    """(rank, step), and (rank, step, bucket); milliseconds."""

    spent: dict[Phase, Floats]
    begin: Floats
    arrival: Floats
    last: Floats
    done: Floats


def faults_of(ranks: int) -> Faults:
    hosts = max(1, ranks // RANKS_PER_HOST)
    throttled = slice(hosts // 4 * RANKS_PER_HOST, (hosts // 4 + max(1, hosts // 8)) * 8)
    return Faults(ranks // 2 + 1, tuple(range(3, ranks, max(4, ranks // 32))), throttled)


def generate(ranks: int, steps: int, seed: int = 7) -> Timeline:
    random = np.random.default_rng(seed)
    times = _simulate(ranks, steps, random)
    seen = _seen(ranks, steps, random)
    spans = _spans(times, seen, random)
    end = times.begin + sum(times.spent.values())
    return Timeline(
        float(end.max()),
        tuple(range(ranks)),
        tuple(f"node{rank // RANKS_PER_HOST:03d}" for rank in range(ranks)),
        spans,
        _calls(times, seen, random),
        _grid(times, seen, end),
        Marks((COLLECTION,), *[np.empty(0, np.int64)] * 2, *[np.empty(0)] * 2),
        0.04,
    )


def _own_times(ranks: int, steps: int, random: np.random.Generator) -> dict[Phase, Floats]:
    faults = faults_of(ranks)

    def around(ms: float) -> Floats:
        return np.asarray(ms * (1 + 0.012 * random.standard_normal((ranks, steps))))

    own = {
        Phase.INPUT: around(1.5), Phase.FORWARD: around(32.0), Phase.BACKWARD: around(61.0),
        Phase.OPTIMIZER: around(6.0),
    }  # fmt: skip
    own[Phase.BACKWARD][faults.slow] *= 1.1
    middle = slice(int(steps * 0.55), int(steps * 0.63))
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        own[phase][faults.throttled, middle] *= 1.18
    stalls = random.random((len(faults.stalling), steps)) < 0.01
    own[Phase.INPUT][list(faults.stalling)] += stalls * random.uniform(20, 120, stalls.shape)
    return own


def _simulate(ranks: int, steps: int, random: np.random.Generator) -> _Times:
    own = _own_times(ranks, steps, random)
    begin = np.zeros((ranks, steps))
    arrival = np.empty((ranks, steps, BUCKETS))
    last, done = np.empty((steps, BUCKETS)), np.empty((steps, BUCKETS))
    wait = np.empty((ranks, steps))
    ready = (np.arange(BUCKETS) + 1) / BUCKETS
    now = np.zeros(ranks)
    for step in range(steps):
        begin[:, step] = now
        computed = now + own[Phase.INPUT][:, step] + own[Phase.FORWARD][:, step]
        arrival[:, step] = computed[:, None] + own[Phase.BACKWARD][:, step, None] * ready
        last[step] = arrival[:, step].max(axis=0)
        free = -np.inf
        for bucket in range(BUCKETS):
            free = max(free, last[step, bucket]) + BUCKET_MS
            done[step, bucket] = free
        computed += own[Phase.BACKWARD][:, step]
        wait[:, step] = last[step, -1] - computed
        now = done[step, -1] + own[Phase.OPTIMIZER][:, step]
    transfer = np.broadcast_to(done[:, -1] - last[:, -1], wait.shape)
    return _Times({**own, Phase.WAIT: wait, Phase.TRANSFER: transfer}, begin, arrival, last, done)


def _seen(ranks: int, steps: int, random: np.random.Generator) -> Bools:
    """Which rank recorded which step."""
    seen = np.ones((ranks, steps), np.bool_)
    for rank in np.flatnonzero(random.random(ranks) < PARTIAL):
        seen[rank, : int(steps * random.uniform(0.05, 0.3))] = False
    for rank in np.flatnonzero(random.random(ranks) < PARTIAL):
        seen[rank, int(steps * random.uniform(0.7, 0.95)) :] = False
    return seen


def _kept(seen: Bools, each: int, random: np.random.Generator) -> Bools:
    kept = np.repeat(seen[:, :, None], each, axis=2)
    kept &= random.random(kept.shape, np.float32) >= LOST
    return kept


def _numbers(shape: tuple[int, ...], kept: Bools) -> tuple[npt.NDArray[np.int32], ...]:
    rank, sync = np.arange(shape[0], dtype=np.int32), np.arange(1, shape[1] + 1, dtype=np.int32)
    return (
        np.broadcast_to(rank[:, None, None], shape)[kept],
        np.broadcast_to(sync[None, :, None], shape)[kept],
    )


def _spans(times: _Times, seen: Bools, random: np.random.Generator) -> Spans:
    lengths = np.stack([times.spent[phase] for phase in PHASES], axis=2)
    ends = times.begin[:, :, None] + np.cumsum(lengths, axis=2)
    kept = _kept(seen, len(PHASES), random) & (lengths > 0)
    rank, sync = _numbers(ends.shape, kept)
    phase = np.broadcast_to(np.array(PHASES, np.uint8), ends.shape)[kept]
    count = len(phase)
    return Spans(
        np.arange(count, dtype=np.uint32), rank, sync, phase, (ends - lengths)[kept], ends[kept]
    )


def _calls(times: _Times, seen: Bools, random: np.random.Generator) -> Calls:
    shape = times.arrival.shape
    kept = _kept(seen, BUCKETS, random)
    rank, sync = _numbers(shape, kept)
    bucket = np.broadcast_to(np.arange(BUCKETS, dtype=np.int32), shape)[kept]
    begin = times.arrival[kept]
    place = (sync - 1, bucket)
    count = len(begin)
    yes = np.ones(count, np.bool_)
    return Calls(
        np.arange(count, dtype=np.uint32), rank, sync,
        (place[0] * BUCKETS + bucket).astype(np.uint32), bucket, begin,
        (times.last[place] - begin).astype(np.float32),
        (times.done[place] - begin).astype(np.float32),
        times.arrival.argmax(axis=0).astype(np.int32)[place],
        yes, (bucket % 2).astype(np.uint8), np.full(count, 2, np.uint8), yes, yes,
        _kinds(),
    )  # fmt: skip


def _kinds() -> CallKinds:
    zeros = np.zeros(BUCKETS, np.int64)
    return CallKinds(zeros, zeros + Op.ALL_REDUCE, np.arange(BUCKETS), zeros + BUCKET_BYTES)


def _grid(times: _Times, seen: Bools, end: Floats) -> StepGrid:
    def cells(values: Floats) -> Floats:
        return np.where(seen, values, np.nan)

    ranks, steps = seen.shape
    nothing = np.zeros_like(end)
    return StepGrid(
        np.arange(ranks), np.arange(1, steps + 1), STEP_PHASES,
        np.stack([cells(times.spent.get(phase, nothing)) for phase in STEP_PHASES]),
        cells(times.begin), cells(end),
    )  # fmt: skip
