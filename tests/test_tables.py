"""The arithmetic of time: laws that hold for any run (design §4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.analysis import analyze
from ddpdoctor.events import Flag, Kind, Op, Phase
from ddpdoctor.factsfile import RecorderCost
from ddpdoctor.matching import _second_largest_before
from ddpdoctor.tables import build_tables
from ddpdoctor.tiling import covering, union
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import MS, START_NS, StepTimes, simulate, with_ranks

TERMS = [
    "input_ns",
    "forward_ns",
    "backward_ns",
    "wait_ns",
    "transfer_ns",
    "optimizer_ns",
    "between_ns",
]

times = st.builds(
    StepTimes,
    *(st.floats(0.01, 50, allow_nan=False) for _ in range(5)),
)


@st.composite
def runs(draw) -> Run:
    ranks = draw(st.integers(1, 4))
    steps = draw(st.integers(1, 6))
    spent = {(r, s): draw(times) for r in range(ranks) for s in range(steps)}
    transfers = draw(st.lists(st.floats(0.01, 20), min_size=1, max_size=4))
    return simulate(lambda r, s: spent[r, s], ranks, steps, transfer_ms=transfers)


@given(runs())
@settings(max_examples=60, deadline=None)
def test_the_terms_add_up_to_the_step_and_none_is_negative(run: Run) -> None:
    steps = build_tables(run).steps

    assert (steps[TERMS] >= 0).all().all()
    assert (steps[TERMS].sum(axis=1) == steps["step_ns"]).all()


@given(runs())
@settings(max_examples=40, deadline=None)
def test_segments_tile_each_rank(run: Run) -> None:
    for _, own in build_tables(run).segments.groupby("rank"):
        inside = own[own["step"] >= 0]
        assert (inside["begin_ns"].to_numpy()[1:] == inside["end_ns"].to_numpy()[:-1]).all()
        assert (inside["end_ns"] > inside["begin_ns"]).all()


def without_completions(trace: RankTrace) -> RankTrace:
    """As where the completions of a step's buckets are not stamped: the wait's end stands in."""
    detail = trace.detail.copy()
    bucket = (detail["kind"] == Kind.COLLECTIVE) & ((detail["flags"] & Flag.BUCKET) > 0)
    waits = (detail["kind"] == Kind.SPAN) & (detail["code"] == Phase.BLOCKED)
    ends = np.sort(detail["end_ns"][waits])
    detail["end_ns"][bucket] = ends[np.searchsorted(ends, detail["begin_ns"][bucket])]
    detail["flags"][bucket] += int(Flag.UNTIMED)
    return replace(trace, detail=detail)


@given(runs())
@settings(max_examples=40, deadline=None)
def test_the_terms_need_no_completions_of_buckets(run: Run) -> None:
    stamped, unstamped = build_tables(run), build_tables(with_ranks(run, without_completions))

    assert (stamped.steps[TERMS] == unstamped.steps[TERMS]).all().all()
    buckets = (unstamped.collectives["flags"] & int(Flag.UNTIMED)) > 0
    assert (unstamped.collectives["transfer_ns"][buckets] == -1).all()
    assert (unstamped.steps["overlapped_ns"] == -1).all()  # not measured, and not 0


@pytest.mark.parametrize("stride", [2, 4])
def test_a_late_rank_is_the_same_where_only_some_steps_were_kept(stride: int) -> None:
    """The time between kept steps is nobody's: neither between steps nor a wait."""

    def thinned(trace):
        return replace(trace, detail=trace.detail[trace.detail["step"] % stride == 0])

    run = simulate(lambda rank, step: StepTimes(forward=45 if rank else 5), steps=200)

    whole, some = analyze(run), analyze(with_ranks(run, thinned))

    for before, after in zip(whole.ranks, some.ranks, strict=True):
        assert after.times.step_ms == pytest.approx(before.times.step_ms, abs=0.1)
        assert after.times.between_ms == pytest.approx(before.times.between_ms, abs=0.1)
    late = some.ranks[1].late
    assert late is not None
    assert late.last_share == 1
    assert late.caused_delay_ms == pytest.approx(40)
    assert late.excesses[0].phase is Phase.FORWARD
    assert late.excesses[0].coverage == pytest.approx(1, abs=0.05)


@given(runs())
@settings(max_examples=40, deadline=None)
def test_somebody_waits_for_nobody(run: Run) -> None:
    """At each collective the last rank waits 0, and no wait or transfer is negative."""
    table = build_tables(run).collectives

    assert (table.groupby(["group", "seq"])["wait_ns"].min() == 0).all()
    assert (table[["wait_ns", "queue_ns", "transfer_ns"]] >= 0).all().all()
    assert (table["last_arrival_ns"] >= table["arrival_ns"]).all()


@given(runs(), st.integers(-(10**12), 10**12))
@settings(max_examples=30, deadline=None)
def test_moving_all_clocks_changes_no_duration(run: Run, shift: int) -> None:
    def moved(trace):
        detail = trace.detail.copy()
        for name in ("begin_ns", "issued_ns", "end_ns"):
            detail[name][detail[name] > 0] += abs(shift)
        return replace(trace, detail=detail)

    before, after = build_tables(run).steps, build_tables(with_ranks(run, moved)).steps

    assert (before[[*TERMS, "overlapped_ns"]] == after[[*TERMS, "overlapped_ns"]]).all().all()


@given(runs(), st.randoms())
@settings(max_examples=30, deadline=None)
def test_the_order_of_files_changes_nothing(run: Run, random) -> None:
    shuffled = list(run.ranks)
    random.shuffle(shuffled)

    before = build_tables(run).steps
    after = build_tables(replace(run, ranks=tuple(shuffled))).steps

    assert before.equals(after.sort_values(["rank", "step"], ignore_index=True))


def test_known_times_come_back_in_their_own_terms() -> None:
    """Rank 1 computes 30 ms longer in backward; two buckets of 2 ms each follow."""
    run = simulate(lambda rank, step: StepTimes(2, 4, 40 if rank else 10, 3, 1), transfer_ms=(2, 2))

    analysis = analyze(run)

    victim, culprit = (stats.times for stats in analysis.ranks)
    assert (culprit.input_ms, culprit.forward_ms, culprit.backward_ms) == pytest.approx((2, 4, 40))
    assert victim.backward_ms == pytest.approx(10)
    assert victim.wait_ms == pytest.approx(30)
    assert victim.transfer_ms == culprit.transfer_ms == pytest.approx(2)
    assert culprit.wait_ms == pytest.approx(0)
    assert culprit.overlapped_ms == pytest.approx(2)  # its first bucket, hidden behind backward
    assert victim.step_ms == culprit.step_ms == pytest.approx(52, abs=0.1)


def failed_on_rank_1(trace: RankTrace) -> RankTrace:
    """Its third collective raised: 30 ms after the others had arrived, and ended at once."""
    detail = trace.detail.copy()
    if trace.info.rank == 1:
        row = np.flatnonzero(detail["kind"] == Kind.COLLECTIVE)[2]
        detail["flags"][row] |= Flag.FAILED
        detail["begin_ns"][row] += 30 * MS
        detail["end_ns"][row] = detail["begin_ns"][row] + 1
    return replace(trace, detail=detail)


def test_a_collective_that_raised_takes_no_part_in_arrivals() -> None:
    run = with_ranks(simulate(lambda r, s: StepTimes(), 3, 4), failed_on_rank_1)

    table = build_tables(run).collectives.set_index(["seq", "rank"])

    assert table.loc[2, "complete"].tolist() == [False, False, False]
    assert table.loc[2, "last_rank"].tolist()[1] == 1  # by itself
    assert 1 not in table.loc[2, "last_rank"].tolist()[::2]
    assert table.loc[2, "caused_ns"].tolist() == [0, 0, 0]
    assert (table.loc[2, "wait_ns"] <= 1000).all()  # nobody is said to wait for it
    assert table.loc[(2, 1), "transfer_ns"] == -1
    assert table["complete"].sum() == len(table) - 3


def test_who_stands_in_a_collective_that_failed_elsewhere() -> None:
    run = with_ranks(simulate(lambda r, s: StepTimes(), 2, 4), failed_on_rank_1)

    def still_in_it(trace: RankTrace) -> RankTrace:
        detail = trace.detail.copy()
        if trace.info.rank == 0:
            detail["end_ns"][np.flatnonzero(detail["kind"] == Kind.COLLECTIVE)[2]] = 0
        return replace(trace, detail=detail, closed=False)

    (stuck,) = analyze(with_ranks(run, still_in_it)).stuck

    assert (stuck.op, stuck.seq) == ("all_reduce", 2)
    assert (stuck.waiting, stuck.missing, stuck.failed) == ((0,), (), (1,))


def test_a_group_whose_facts_are_lost_is_not_matched() -> None:
    run = with_ranks(
        simulate(lambda r, s: StepTimes(), 2, 4),
        lambda trace: replace(trace, groups=trace.groups if trace.info.rank else ()),
    )

    assert not build_tables(run).collectives["complete"].any()


@pytest.mark.parametrize(
    ("steps", "cost_ms", "said"), [(40, 0.5, 0.5), (8, 0.5, None), (40, 500, None)]
)
def test_the_cost_of_recording_is_said_where_it_is_one_of_a_step(
    steps: int, cost_ms: float, said: float | None
) -> None:
    cost = RecorderCost(int(cost_ms * steps * MS), steps)
    run = with_ranks(
        simulate(lambda r, s: StepTimes(), steps=steps), lambda trace: replace(trace, cost=cost)
    )

    assert analyze(run).cost_ms_per_step == said


def test_warm_up_steps_are_left_out_and_counted() -> None:
    analysis = analyze(simulate(lambda r, s: StepTimes(forward=500 if s < 2 else 5), steps=20))

    assert (analysis.steps.warmup, analysis.steps.counted) == (2, 18)
    assert analysis.ranks[0].times.forward_ms == pytest.approx(5)


def test_waiting_is_not_told_from_transfer_where_clocks_differ() -> None:
    run = with_ranks(
        simulate(lambda r, s: StepTimes()),
        lambda trace: replace(trace, info=replace(trace.info, clock_id=str(trace.info.rank))),
    )

    times = analyze(run).ranks[0].times

    assert times.wait_ms is None
    assert times.transfer_ms is None
    assert times.blocked_ms == pytest.approx(0.5)


def test_an_open_span_lasts_until_the_last_thing_the_rank_did() -> None:
    run = simulate(lambda r, s: StepTimes(), ranks=1, steps=3)
    detail = run.ranks[0].detail.copy()
    last_backward = np.flatnonzero((detail["kind"] == 1) & (detail["code"] == Phase.BACKWARD))[-1]
    detail["end_ns"][last_backward] = 0
    opened = replace(run, ranks=(replace(run.ranks[0], detail=detail),))

    segments = build_tables(opened).segments

    assert segments["end_ns"].max() == build_tables(run).segments["end_ns"].max()


@given(st.lists(st.integers(1, 100), max_size=30))
def test_second_largest_before_is_what_a_loop_finds(values: list[int]) -> None:
    expected = [sorted(values[:i])[-2] if i >= 2 else 0 for i in range(len(values))]

    assert _second_largest_before(np.array(values, np.int64)).tolist() == expected


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


@given(intervals)
def test_a_union_covers_the_same_moments_without_overlap(pairs: list[tuple[int, int]]) -> None:
    begin = np.array([b for b, _ in pairs], np.int64)
    end = np.array([b + length for b, length in pairs], np.int64)

    union_begin, union_end = union(begin, end)

    covered = {t for b, length in pairs for t in range(b, b + length)}
    found = [t for b, e in zip(union_begin, union_end, strict=True) for t in range(b, e)]
    assert sorted(covered) == found
    moments = np.arange(90)
    assert set(np.flatnonzero(covering(union_begin, union_end, moments)[0])) == covered


def test_no_step_at_all_is_no_crash() -> None:
    run = simulate(lambda r, s: StepTimes(), steps=1)
    without = with_ranks(run, lambda trace: replace(trace, detail=trace.detail[:0]))

    analysis = analyze(without)

    assert analysis.steps.counted == 0
    assert analysis.ranks[0].times is None
    assert analysis.step_ms is None


def with_records(run: Run, rank: int, *records: dict[str, int]) -> Run:
    """The run with further records of one rank, in the order of time."""

    def change(trace: RankTrace) -> RankTrace:
        if trace.info.rank != rank:
            return trace
        more = np.zeros(len(records), trace.detail.dtype)
        more["bucket"] = -1
        for row, fields in enumerate(records):
            for name, value in fields.items():
                more[row][name] = value
        return replace(trace, detail=np.concatenate([trace.detail, more]))

    return with_ranks(run, change)


def message(op: Op, peer: int, begin_ms: float, end_ms: float, seq: int) -> dict[str, int]:
    flags = Flag.POINT_TO_POINT | Flag.BLOCKING
    begin, end = (START_NS + int(at * MS) for at in (begin_ms, end_ms))
    return {
        "kind": Kind.COLLECTIVE, "code": op, "flags": flags, "peer": peer, "seq": seq,
        "begin_ns": begin, "issued_ns": begin, "end_ns": end,
    }  # fmt: skip


def test_waiting_for_a_message_of_a_late_peer_is_wait() -> None:
    """Rank 0 receives twice from rank 1 and once from rank 2, which came first."""
    run = simulate(lambda rank, step: StepTimes(input=100.0), ranks=3, steps=1)
    run = with_records(
        run, 0, message(Op.RECV, 1, 10, 31, 0), message(Op.RECV, 2, 40, 41, 1),
        message(Op.RECV, 1, 50, 56, 2),
    )  # fmt: skip
    run = with_records(run, 1, message(Op.SEND, 0, 30, 31, 0), message(Op.SEND, 0, 55, 56, 1))
    run = with_records(run, 2, message(Op.SEND, 0, 20, 41, 0))

    tables = build_tables(run)

    received = tables.collectives[tables.collectives["op"] == Op.RECV]
    assert received["last_rank"].tolist() == [1, 0, 1]
    assert received["wait_ns"].tolist() == [20 * MS, 0, 5 * MS]
    waited = tables.steps.set_index("rank")["wait_ns"]
    assert waited[0] == 25 * MS
    assert waited[1] == 0
    assert waited[2] == 20 * MS


def test_messages_are_left_apart_where_one_side_was_not_kept() -> None:
    run = simulate(lambda rank, step: StepTimes(input=100.0), steps=1)
    run = with_records(run, 0, message(Op.RECV, 1, 10, 31, 0), message(Op.RECV, 1, 50, 56, 2))
    run = with_records(run, 1, message(Op.SEND, 0, 55, 56, 1))

    collectives = build_tables(run).collectives

    received = collectives[collectives["op"] == Op.RECV]
    assert received["wait_ns"].tolist() == [0, 0]


def test_a_wait_is_blocked_time_of_the_phase_around_it() -> None:
    run = simulate(lambda rank, step: StepTimes(forward=50.0), steps=1)
    wait = {
        "kind": Kind.WAIT, "code": Phase.BLOCKED, "depth": 1,
        "begin_ns": START_NS + 10 * MS, "end_ns": START_NS + 30 * MS,
    }  # fmt: skip

    before, after = (
        build_tables(each).steps.set_index("rank").loc[0]
        for each in (run, with_records(run, 0, wait))
    )

    assert after["forward_ns"] == before["forward_ns"] - 20 * MS
    blocked = after["wait_ns"] + after["transfer_ns"]
    assert blocked == before["wait_ns"] + before["transfer_ns"] + 20 * MS
    assert after["step_ns"] == before["step_ns"]
