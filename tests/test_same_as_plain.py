"""What works on whole arrays, or on one rank after the other, against the plain way to say it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.analysis import analyze
from ddpdoctor.analysis.backward import _usual_arrival
from ddpdoctor.analysis.delays import Arrivals, _arrivals, delays_of
from ddpdoctor.analysis.hosts import TOGETHER, _gaps
from ddpdoctor.analysis.hotlines import HotLines
from ddpdoctor.analysis.numbered import CallsOfRanks, key_of
from ddpdoctor.analysis.stepwise import stepwise
from ddpdoctor.events import Flag, GroupInfo, HotLine, Kind, Phase, Site
from ddpdoctor.recordedcalls import _counted_up_to, is_matched
from ddpdoctor.tables import Tables, build_tables
from ddpdoctor.tiling import covered_until, covering, filled
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import StepTimes, simulate, with_ranks

SEEDS = range(12)


def untidy(seed: int) -> Run:
    """Ranks that miss calls and steps, calls that raised, two groups, numbers far apart."""
    draw = random.Random(seed)
    ranks = draw.randint(2, 5)
    run = simulate(
        lambda r, s: StepTimes(forward=draw.uniform(1, 9), backward=draw.uniform(2, 20)),
        ranks, draw.randint(8, 30), transfer_ms=(0.5,) * draw.randint(1, 4),
        hosts=[f"node{rank // 2}" for rank in range(ranks)],
    )  # fmt: skip
    apart = draw.choice([1, 1, 1000])
    unalike = draw.random() < 0.5

    def change(trace: RankTrace) -> RankTrace:
        detail = trace.detail.copy()
        calls = np.flatnonzero(detail["kind"] == Kind.COLLECTIVE)
        other = GroupInfo("1", tuple(range(ranks - 1)))
        if trace.info.rank < ranks - 1:
            detail["group"][calls[detail["seq"][calls] % 3 == 0]] = 1
        detail["seq"] *= apart
        detail["flags"][draw.sample(calls.tolist(), 2)] |= int(Flag.FAILED)
        kept = np.ones(len(detail), np.bool_)
        if unalike:
            kept[draw.sample(range(len(detail)), 6)] = False
        return replace(trace, detail=detail[kept], groups=(*trace.groups, other))

    return with_ranks(run, change)


def plain_arrivals(tables: Tables, ranks: np.ndarray, syncs: np.ndarray) -> Arrivals:
    """By a table of all calls of all ranks."""
    table = tables.collectives
    table = table[is_matched(table["flags"], table["group"]) & table["rank"].isin(ranks)]
    table = table.drop_duplicates(["rank", "group", "seq"])
    present = table.groupby(["group", "seq"])["rank"].transform("size")
    table = table[present == len(ranks)].sort_values(["group", "seq", "rank"])
    ns = table["arrival_ns"].to_numpy().reshape(-1, len(ranks)).T
    step = table["step"].to_numpy().reshape(-1, len(ranks))[:, 0]
    own = tables.steps[tables.steps["rank"] == ranks[0]].drop_duplicates("step")
    sync = own.set_index("step")["sync"].reindex(step).fillna(-1).to_numpy()
    place = {sync: index for index, sync in enumerate(syncs.tolist())}
    index = np.array([place.get(int(each), -1) for each in sync], np.int64)
    order = np.lexsort((ns[0], index)) if len(index) else index
    order = order[index[order] >= 0]
    return Arrivals(index[order], ns[:, order])


@pytest.mark.parametrize("seed", SEEDS)
def test_arrivals_at_each_collective(seed: int) -> None:
    run = untidy(seed)
    tables, counted = build_tables(run), analyze(run).steps
    steps = stepwise(tables, counted)

    found, expected = _arrivals(tables, steps), plain_arrivals(tables, steps.ranks, steps.syncs)

    assert found.step.tolist() == expected.step.tolist()
    assert found.ns.tolist() == expected.ns.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_step_of_each_delay_has_its_longest_one(seed: int) -> None:
    run = untidy(seed)
    tables, counted = build_tables(run), analyze(run).steps
    delays = delays_of(tables, stepwise(tables, counted))
    if delays is None:
        return
    caused = np.diff(np.sort(delays.every.ns, axis=0)[-2:], axis=0)[0] / 1e6
    for step, ms in enumerate(delays.caused_ms):
        assert ms == max(caused[delays.every.step == step])


@pytest.mark.parametrize("seed", SEEDS)
def test_who_arrived_first_and_last(seed: int) -> None:
    table = build_tables(untidy(seed)).collectives
    table = table[is_matched(table["flags"], table["group"])]
    for _, met in table.groupby(["group", "seq"]):
        arrivals = sorted(zip(met["arrival_ns"], met["rank"], strict=True))
        assert set(met["first_arrival_ns"]) == {arrivals[0][0]}
        assert set(met["last_arrival_ns"]) == {arrivals[-1][0]}
        assert set(met["last_rank"]) == {arrivals[-1][1]}
        caused = arrivals[-1][0] - arrivals[-2][0] if len(arrivals) > 1 else 0
        assert set(met["caused_ns"]) == {caused}


@pytest.mark.parametrize("seed", SEEDS)
def test_counted_steps_and_their_means(seed: int) -> None:
    analysis = analyze(untidy(seed))
    steps = analysis.tables.steps
    ranks = steps["rank"].nunique()
    seen = steps.groupby("sync")["rank"].nunique()
    common = sorted(seen.index[seen == ranks])

    assert len(common) == analysis.steps.warmup + analysis.steps.counted
    counted = steps[steps["sync"].between(analysis.steps.first_sync, analysis.steps.last_sync)]
    for rank, own in counted.groupby("rank"):
        times = analysis.ranks[int(rank)].times
        for name in ("input", "wait", "transfer", "between", "step", "overlapped"):
            assert getattr(times, f"{name}_ms") == pytest.approx(own[f"{name}_ns"].mean() / 1e6)
    both = stepwise(analysis.tables, analysis.steps)
    assert both.syncs.tolist() == common[analysis.steps.warmup :]
    for row, rank in enumerate(both.ranks):
        own = steps[steps["rank"] == rank].drop_duplicates("sync").set_index("sync")
        expected = own["forward_ns"].reindex(both.syncs) / 1e6
        assert both.of_phase(Phase.FORWARD)[row].tolist() == expected.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_usual_arrival_of_the_other_ranks(seed: int) -> None:
    analysis = analyze(untidy(seed))
    table = analysis.tables.collectives
    table = table[is_matched(table["flags"], table["group"])]
    own = table[table["rank"] == 1]
    keys = key_of(own["group"].to_numpy(), own["seq"].to_numpy())
    others = table[table["rank"] != 1].groupby(["group", "seq"])["arrival_ns"].median()
    expected = others.reindex(pd.MultiIndex.from_frame(own[["group", "seq"]]))

    calls = CallsOfRanks(analysis.tables, "step", "flags", "bucket", "arrival_ns")
    found = _usual_arrival(analysis, calls, 1, keys)

    np.testing.assert_array_equal(found, expected.to_numpy())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gap_before_the_last_host(seed: int) -> None:
    """Of a step's arrivals in their order: those of one host at the end, and before them a gap."""
    draw = np.random.default_rng(seed)
    of_row = draw.permutation(np.repeat(np.arange(3), 2))
    every = Arrivals(np.repeat(np.arange(20), 2), draw.integers(0, 12, (6, 40)))
    expected = []
    for step in range(20):
        gaps = []
        for column in np.flatnonzero(every.step == step):
            arrivals = sorted(zip(every.ns[:, column].tolist(), of_row.tolist(), strict=True))
            host = arrivals[-1][1]
            last = [at for at, other in arrivals if other == host]
            before = max(at for at, other in arrivals if other != host)
            is_whole = last[0] - before >= TOGETHER * (last[-1] - before)
            gaps.append((last[-1] - before, host) if is_whole else (0, -1))
        gap, host = max(gaps, key=lambda pair: pair[0])
        expected.append((host if gap else -1, gap / 1e6))

    host, gap_ms = _gaps(every, of_row, 20)

    assert list(zip(host.tolist(), gap_ms.tolist(), strict=True)) == expected


lines = st.lists(
    st.tuples(st.sampled_from([Phase.FORWARD, Phase.INPUT]), st.integers(1, 3), st.integers(0, 9)),
    max_size=4,
)


@given(st.lists(lines, min_size=1, max_size=6), st.integers(1, 3))
@settings(deadline=None)
def test_samples_beyond_those_of_the_other_ranks(own: list[list[tuple]], first: int) -> None:
    hot = {
        rank: tuple(HotLine(p, Site("train.py", n, "f"), samples) for p, n, samples in each)
        for rank, each in enumerate(own)
    }
    ranks = tuple(range(min(first, len(own))))

    def counter(rank: int) -> Counter[Site]:
        counts: Counter[Site] = Counter()
        for line in hot[rank]:
            if line.phase is Phase.FORWARD:
                counts[line.site] += line.samples
        return counts

    others = [counter(rank) for rank in hot if rank not in ranks]
    more = Counter(
        {
            site: samples - int(np.median([other[site] for other in others] or [0]))
            for site, samples in counter(0).items()
        }
    )
    usual = int(np.median([other.total() for other in others] or [0]))

    samples, where = HotLines(hot).beyond_others(Phase.FORWARD, ranks)

    assert samples == max(0, counter(0).total() - usual)
    top = more.most_common(1)
    assert (where is not None) == bool(top and top[0][1] > 0)
    if where is not None:
        assert where.line == top[0][0].line


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(intervals, st.lists(st.integers(0, 90), max_size=30))
@settings(deadline=None)
def test_what_fills_each_moment(pairs: list[tuple[int, int]], at: list[int]) -> None:
    """Intervals may overlap, as in a file that is damaged."""
    begin = np.array(sorted(b for b, _ in pairs), np.int64)
    end = begin + np.array([length for _, length in pairs], np.int64)
    times = np.array(sorted(at), np.int64)

    inside, index = covering(begin, end, times)

    expected = np.where(inside, index, -1)
    assert filled(times, begin, end, np.arange(len(begin))).tolist() == expected.tolist()
    assert _counted_up_to(begin, times).tolist() == [sum(begin <= t) for t in times]
    assert _counted_up_to(begin, times[::-1]).tolist() == [sum(begin <= t) for t in times[::-1]]


@given(intervals, st.lists(st.integers(0, 90), max_size=30))
@settings(deadline=None)
def test_how_much_is_covered_until_each_moment(pairs: list[tuple[int, int]], at: list[int]) -> None:
    begin = np.cumsum([b + length for b, length in pairs], dtype=np.int64)
    end = begin + np.array([length for _, length in pairs], np.int64)
    end[:-1] = np.minimum(end[:-1], begin[1:])
    moments = {t for b, e in zip(begin, end, strict=True) for t in range(b, e)}

    found = covered_until(begin, end, np.array(at, np.int64))

    assert found.tolist() == [sum(t < moment for t in moments) for moment in at]
