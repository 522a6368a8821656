"""Runs whose collectives go over a link that is computed: gradients, buffers, small messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ddpdoctor.analysis.replay import Link, transfers
from ddpdoctor.baseline import NetworkBaseline, PairRate, SizeRate
from ddpdoctor.events import Flag, GroupInfo, Kind, Op, Phase, Site
from ddpdoctor.tracefile import DETAIL_DTYPE, STEP_DTYPE, RankTrace, Run
from tests.builders import LINE, MS, make_run, rank_info
from tests.builders import _Rank as Rank

BROADCAST_SITE = 1
METRIC_SITE = 2
LINE_OF_METRIC = "train.py:77"
SITES = {
    BROADCAST_SITE: LINE[Phase.FORWARD],
    METRIC_SITE: Site("/home/user/train.py", 77, "log"),
}


def over_link(
    link: Link,
    *,
    ranks: int = 2,
    steps: int = 40,
    buckets: int = 4,
    bucket_bytes: float = 4_000_000,
    forward_ms: float = 10.0,
    backward_ms: float = 30.0,
    first_ready: float = 0.0,
    extra_ms: float = 0.0,
    metrics: int = 0,
    metric_ms: float = 0.3,
    metric_every: int = 1,
    late_ms: float = 0.0,
) -> Run:
    """Buckets are ready evenly over what `first_ready` leaves of backward.

    `extra_ms`: a broadcast in forward that takes it. `metrics`: small all-reduces after the
    optimizer, every so many steps. `late_ms`: rank 1 is late by it, in forward.
    """
    states = [Rank() for _ in range(ranks)]
    seq = 0
    for sync in range(steps):
        for rank, state in enumerate(states):
            state.phase(Phase.INPUT, 1.0, sync)
            begin = state.now
            state.now += 0.05 * MS
            state.forward_begin = begin  # type: ignore[attr-defined]
            if rank == 1:
                state.now += late_ms * MS
        if extra_ms:
            _blocking(states, Op.BROADCAST, extra_ms, sync, seq, BROADCAST_SITE, 1_000_000)
            seq += 1
        for state in states:
            state.now += forward_ms * MS
            begin = state.forward_begin  # type: ignore[attr-defined]
            state.add(Kind.SPAN, Phase.FORWARD, begin, state.now, step=sync, sync=sync)
        seq = _backward(states, link, sync, seq, buckets, bucket_bytes, backward_ms, first_ready)
        for state in states:
            state.phase(Phase.OPTIMIZER, 1.0, sync, sync + 1)
            state.now += 0.1 * MS
        if metrics and sync % metric_every == 0:
            for _ in range(metrics):
                _blocking(states, Op.ALL_REDUCE, metric_ms, sync, seq, METRIC_SITE, 4096)
                seq += 1
                for state in states:
                    state.now += 0.02 * MS
        # one small message of the bucket rebuild, from which alpha is known
        if sync == 1:
            _blocking(states, Op.BROADCAST, link.alpha_ms, sync, seq, 0, 256)
            seq += 1
        for state in states:
            state.now += 0.2 * MS
            state.add(Kind.STEP, 0, state.step_begin, state.now, step=sync, sync=sync + 1)
            state.step_begin = state.now
    return make_run([_trace(rank, state, ranks) for rank, state in enumerate(states)])


def _blocking(
    states: list[Rank], op: Op, ms: float, sync: int, seq: int, site: int, nbytes: int
) -> None:
    end = max(state.now for state in states) + ms * MS
    for state in states:
        state.add(
            Kind.COLLECTIVE, op, state.now, end, step=sync, sync=sync, seq=seq, site=site,
            nbytes=nbytes, flags=Flag.BLOCKING, issued_ns=int(state.now) + 1000, depth=0,
        )  # fmt: skip
        state.now = end


def _backward(
    states: list[Rank], link: Link, sync: int, seq: int, buckets: int, nbytes: float,
    backward_ms: float, first_ready: float,
) -> int:  # fmt: skip
    begins = [state.now for state in states]
    places = first_ready + (1 - first_ready) * (np.arange(buckets) + 1) / buckets
    if first_ready:
        places = np.linspace(first_ready, 1, buckets)
    ready = max(begins) / MS + backward_ms * places
    done = transfers(ready[None, :], np.full(buckets, nbytes), link)[0] * MS
    for bucket in range(buckets):
        for state, begin in zip(states, begins, strict=True):
            state.add(
                Kind.COLLECTIVE, Op.ALL_REDUCE, begin + backward_ms * places[bucket] * MS,
                done[bucket], step=sync, sync=sync, seq=seq + bucket, bucket=bucket,
                nbytes=int(nbytes), flags=Flag.BUCKET, depth=1,
                issued_ns=int(begin + backward_ms * places[bucket] * MS) + 1000,
            )  # fmt: skip
    for state, begin in zip(states, begins, strict=True):
        computed = begin + backward_ms * MS
        state.now = max(done.max(), computed)
        state.add(Kind.SPAN, Phase.BACKWARD, begin, state.now, step=sync, sync=sync)
        if state.now > computed:
            state.add(Kind.SPAN, Phase.BLOCKED, computed, state.now, step=sync, sync=sync, depth=1)
    return seq + buckets


def _trace(rank: int, state: Rank, world_size: int) -> RankTrace:
    return RankTrace(
        Path(f"/runs/test/attempt-0/rank{rank:05d}.ddt"),
        rank_info(rank, world_size, host=f"node{rank}"),
        True,
        np.array(state.records, DETAIL_DTYPE),
        np.empty(0, STEP_DTYPE),
        groups=(GroupInfo("0", tuple(range(world_size))),),
        sites=SITES,
    )


def on_one_host(run: Run) -> Run:
    traces = (
        replace(trace, info=replace(trace.info, network_id="boot/net:[1]")) for trace in run.ranks
    )
    return replace(run, ranks=tuple(traces))


def baseline(
    busbw: float = 0.05, alpha_ms: float = 0.3, pairs: tuple[PairRate, ...] = (), ranks: int = 2
) -> NetworkBaseline:
    """As measured before the run over such hosts."""
    sizes = (
        SizeRate(1024, alpha_ms / 1e3, 1024 / alpha_ms / 1e6, 1024 / alpha_ms / 1e6),
        SizeRate(2**24, 2**24 / busbw / 1e9, busbw, busbw),
    )
    hosts = tuple(f"node{rank}" for rank in range(ranks))
    return NetworkBaseline("gloo", ranks, hosts, "eth0", sizes, pairs, len(pairs))


def pairs(rates: dict[tuple[int, int], float]) -> tuple[PairRate, ...]:
    return tuple(PairRate(a, b, 1e-4, rate, rate) for (a, b), rate in rates.items())
