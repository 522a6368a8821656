"""Makes recorded runs without training: a clock that is computed, records as a rank writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ddpdoctor.analysis import analyze
from ddpdoctor.checks import CheckResult, run_check, trace_checks
from ddpdoctor.deliveries import LoaderEpoch
from ddpdoctor.events import (
    DrawnIndices,
    Flag,
    GroupInfo,
    HotLine,
    Kind,
    LoaderInfo,
    Op,
    Phase,
    RankInfo,
    RunInfo,
    Site,
)
from ddpdoctor.tracefile import DETAIL_DTYPE, STEP_DTYPE, RankTrace, Run

MS = 1_000_000
START_NS = 5_000 * MS
LINE = {phase: Site("/home/user/train.py", 10 * phase + 1, "train") for phase in Phase}


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds one rank spends in one step, and when its buckets are ready in backward."""

    input: float = 1.0
    forward: float = 5.0
    backward: float = 10.0
    optimizer: float = 1.0
    between: float = 0.5


@dataclass
class _Rank:
    records: list[tuple[int, ...]] = field(default_factory=list)
    now: float = START_NS
    step_begin: float = START_NS

    def add(self, kind: int, code: int, begin: float, end: float, **fields: int) -> None:
        values = dict.fromkeys(DETAIL_DTYPE.names or (), 0)
        values |= {"commit": len(self.records) + 1, "kind": kind, "code": code, "bucket": -1}
        values |= {"begin_ns": int(begin), "end_ns": int(end), "peer": -1, **fields}
        self.records.append(tuple(values.values()))

    def phase(self, phase: Phase, ms: float, step: int, sync: int | None = None) -> None:
        begin, self.now = self.now, self.now + ms * MS
        self.add(Kind.SPAN, phase, begin, self.now, step=step, sync=step if sync is None else sync)


def simulate(
    times: Callable[[int, int], StepTimes],
    ranks: int = 2,
    steps: int = 40,
    *,
    transfer_ms: Sequence[float] = (0.5, 0.5),
    bucket_bytes: int = 4_000_000,
    hosts: Sequence[str] = (),
) -> Run:
    """A run in which rank r spends `times(r, step)` and each bucket takes its transfer time.

    Buckets become ready evenly over backward, the last at its end; all ranks have a
    bucket when the last of them has arrived and the transfers before it are done.
    """
    states = [_Rank() for _ in range(ranks)]
    for sync in range(steps):
        for rank, state in enumerate(states):
            spent = times(rank, sync)
            state.phase(Phase.BETWEEN, 0, sync)
            state.phase(Phase.INPUT, spent.input, sync)
            state.phase(Phase.FORWARD, spent.forward, sync)
        _backward(
            states, [times(rank, sync) for rank in range(ranks)], sync, transfer_ms, bucket_bytes
        )
        for rank, state in enumerate(states):
            spent = times(rank, sync)
            state.phase(Phase.OPTIMIZER, spent.optimizer, sync, sync + 1)
            state.add(Kind.STEP, 0, state.step_begin, state.now, step=sync, sync=sync + 1)
            state.step_begin = state.now
            state.now += spent.between * MS
    return make_run([_trace(rank, state, ranks, hosts) for rank, state in enumerate(states)])


def _backward(
    states: list[_Rank],
    spent: list[StepTimes],
    sync: int,
    transfer_ms: Sequence[float],
    bucket_bytes: int,
) -> None:
    begins = [state.now for state in states]
    done = 0.0
    count = len(transfer_ms)
    arrivals = [
        [begin + times.backward * MS * (bucket + 1) / count for bucket in range(count)]
        for begin, times in zip(begins, spent, strict=True)
    ]
    for bucket, ms in enumerate(transfer_ms):
        done = max(done, *(own[bucket] for own in arrivals)) + ms * MS
        for state, own in zip(states, arrivals, strict=True):
            state.add(
                Kind.COLLECTIVE, Op.ALL_REDUCE, own[bucket], done, step=sync, sync=sync,
                seq=sync * count + bucket, bucket=bucket, nbytes=bucket_bytes,
                flags=Flag.BUCKET, issued_ns=int(own[bucket]) + 1000, depth=1,
            )  # fmt: skip
    for state, begin, times in zip(states, begins, spent, strict=True):
        computed = begin + times.backward * MS
        state.now = max(done, computed)
        state.add(Kind.SPAN, Phase.BACKWARD, begin, state.now, step=sync, sync=sync)
        if state.now > computed:
            state.add(Kind.SPAN, Phase.BLOCKED, computed, state.now, step=sync, sync=sync, depth=1)


def _trace(rank: int, state: _Rank, world_size: int, hosts: Sequence[str]) -> RankTrace:
    host = hosts[rank] if hosts else "node0"
    return RankTrace(
        Path(f"/runs/test/attempt-0/rank{rank:05d}.ddt"),
        rank_info(rank, world_size, host=host),
        True,
        np.array(state.records, DETAIL_DTYPE),
        np.empty(0, STEP_DTYPE),
        groups=(GroupInfo("0", tuple(range(world_size))),),
    )


def rank_info(rank: int, world_size: int, **changes: object) -> RankInfo:
    info = RankInfo(
        rank, world_size, rank, "node0", 1000 + rank, "gloo", "cpu", "boot/time:[1]",
        f"boot/net:[{rank}]", 0, START_NS,
        "host", {}, {"python": "3.11.7", "torch": "2.13.0"}, {"train.py": "aaaa"}, 1, 8,
    )  # fmt: skip
    return replace(info, **changes)  # type: ignore[arg-type]


def make_run(traces: Sequence[RankTrace], problems: tuple[str, ...] = ()) -> Run:
    world_size = traces[0].info.world_size
    return Run(
        Path("/runs/test/attempt-0"),
        RunInfo("test", 0, world_size, "gloo"),
        tuple(traces),
        problems,
    )


def with_ranks(run: Run, change: Callable[[RankTrace], RankTrace]) -> Run:
    """The run with each rank's trace changed."""
    return replace(run, ranks=tuple(change(trace) for trace in run.ranks))


def with_records(run: Run, more: Callable[[RankTrace], list[dict[str, int]]]) -> Run:
    """The run with more detail records on each rank; fields not named are 0."""

    def add(trace: RankTrace) -> RankTrace:
        added = np.zeros(len(rows := more(trace)), DETAIL_DTYPE)
        for index, row in enumerate(rows):
            added[index]["commit"] = len(trace.detail) + index + 1
            for name, value in row.items():
                added[index][name] = value
        return replace(trace, detail=np.concatenate([trace.detail, added]))

    return with_ranks(run, add)


def with_samples(run: Run, rank: int, phase: Phase, samples: int) -> Run:
    """As if the sampler had seen this rank so often in one line of a phase."""
    line = HotLine(phase, LINE[phase], samples)
    return with_ranks(
        run,
        lambda trace: (
            replace(trace, hot_lines=(*trace.hot_lines, line)) if trace.info.rank == rank else trace
        ),
    )


def loader(**changes: object) -> LoaderInfo:
    made = LoaderInfo(
        0, "Images", 1000, "DistributedSampler", 2, 0, False, 8, False, 0, LINE[Phase.INPUT]
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def with_loader(run: Run, **changes: object) -> Run:
    return with_ranks(run, lambda trace: replace(trace, loaders={0: own_loader(trace, **changes)}))


def own_loader(trace: RankTrace, **changes: object) -> LoaderInfo:
    """A loader whose sampler is split between the ranks as it should be."""
    own = {"sampler_rank": trace.info.rank, "sampler_replicas": trace.info.world_size}
    return loader(**own | changes)


def drawn(
    indices: Sequence[int], contents: Callable[[int], tuple[int, ...] | None] = lambda i: (i, i)
) -> DrawnIndices:
    return DrawnIndices(
        0, 0, len(indices), 1.0, tuple(indices), tuple(contents(index) for index in indices)
    )


def one_pass(batches: int, **changes: object) -> LoaderEpoch:
    """What a rank recorded of an epoch of eight samples a batch that came to its end."""
    made = LoaderEpoch(
        loader=0, epoch=0, batches=batches, samples=8 * batches, ended=True, first_sync=0,
        last_sync=batches, sampler_epoch=0, base_seed=1, first_rows=8, last_rows=8, least_rows=8,
        most_rows=8, shape=(8, 3), elements=(24,), order=(), first_indices=(),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def result_of(code: str, run: Run) -> CheckResult:
    """What one check says of a run."""
    (check,) = [check for check in trace_checks() if check.code == code]
    return run_check(check, analyze(run))
