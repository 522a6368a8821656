"""Who is named where several causes of waiting would fit: one cause gives one finding."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.analysis import analyze
from ddpdoctor.checks import run_checks
from ddpdoctor.events import Phase
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.report import run_report, to_json
from ddpdoctor.tracefile import Run
from tests.builders import StepTimes, simulate, with_loader, with_ranks, with_samples
from tests.waiting_builders import (
    found_in,
    slower,
    usual,
    with_batches,
    with_collections,
    with_queue,
    with_quota,
)

HOSTS = ("a", "a", "b", "b")


def only(run: Run, code: str) -> Finding:
    said = found_in(run)
    assert set(said) == {code}
    (finding,) = said[code]
    return finding


def lengths(rank: int, step: int) -> int:
    return random.Random(1000 * rank + step).randint(20, 400)


def of_length(rank: int, step: int) -> StepTimes:
    size = lengths(rank, step)
    return StepTimes(forward=0.02 * size, backward=0.04 * size)


FAULTS = {
    "a slow rank": (simulate(slower("forward", lambda r, s: 30 * (r == 1)), 4), "DD101", (1,)),
    "uneven batches": (with_batches(simulate(of_length, 3, 60), lengths), "DD102", ()),
    "a slow host": (
        simulate(slower("backward", lambda r, s: 30 * (r > 1)), 4, hosts=HOSTS), "DD103", (2, 3),
    ),
    "a stall of one": (
        simulate(slower("input", lambda r, s: 200 * (r == 1 and s % 10 == 9)), 2, 80),
        "DD104", (1,),
    ),
    "a stall of all": (
        simulate(slower("between", lambda r, s: 200 * (s % 10 == 9)), 2, 80), "DD104", (),
    ),
    "garbage": (
        with_collections(
            simulate(slower("forward", lambda r, s: 60 * (r == s % 4 == 1)), 2, 40),
            {(1, step): 60 for step in range(1, 40, 4)},
        ),
        "DD105", (1,),
    ),
    "a quota": (
        with_quota(
            simulate(slower("forward", lambda r, s: 30 * (r == 1))),
            lambda r, s: 30 * (r == 1),
        ),
        "DD107", (1,),
    ),
    "rank 0 logs": (
        simulate(slower("between", lambda r, s: 30 * (r == 0)), 3), "DD108", (0,),
    ),
    "rank 0 saves": (
        simulate(slower("between", lambda r, s: 300 * (r == 0 and s % 10 == 9)), 3, 60),
        "DD108", (0,),
    ),
    "rank 1 is hot": (
        simulate(slower("forward", lambda r, s: 25 * (r == 1 and s > 60)), 3, 120), "DD109", (1,),
    ),
    "a list grows": (
        simulate(slower("between", lambda r, s: 0.2 * s), 2, 120), "DD109", (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_one_cause_gives_one_finding_that_says_what_it_gains(name: str) -> None:
    run, code, culprits = FAULTS[name]
    finding = only(run, code)
    assert finding.culprits == culprits
    assert finding.lost_s is not None
    assert finding.lost_s > 0
    assert "A step would take" in finding.fix


def on_other_clocks(run: Run) -> Run:
    def later(trace):
        detail = trace.detail.copy()
        for column in ("begin_ns", "end_ns", "issued_ns"):
            detail[column][detail[column] > 0] += 7_000_000_000
        return replace(trace, detail=detail)

    return with_ranks(run, later)


@pytest.mark.parametrize("name", FAULTS)
def test_neither_the_order_of_the_files_nor_a_shift_of_the_clock_changes_it(name: str) -> None:
    run, *_ = FAULTS[name]
    turned = on_other_clocks(replace(run, ranks=run.ranks[::-1]))
    assert analyze(turned).waiting == analyze(run).waiting
    assert found_in(turned) == found_in(run)


HEALTHY = {
    "equal ranks": simulate(usual, 4, 120),
    "noise": simulate(
        lambda r, s: StepTimes(forward=5 * random.Random(f"{r} {s}").uniform(0.9, 1.1)), 3, 120
    ),
    "a checkpoint, once": simulate(slower("between", lambda r, s: 90 * (s == 80)), 2, 120),
    "rank 0 saves, once": simulate(
        slower("between", lambda r, s: 2000 * (r == 0 and s == 80)), 2, 120
    ),
    "a slow start": simulate(slower("forward", lambda r, s: 300 * (s < 5)), 2, 60),
    "a short run": simulate(usual, 2, 9),
    "batches that grow on purpose": with_batches(
        simulate(lambda r, s: StepTimes(forward=5 + 0.1 * s, backward=10 + 0.2 * s), 2, 120),
        lambda r, s: 100 + 2 * s,
    ),
    "a disturbance that goes away": simulate(
        slower("forward", lambda r, s: 15 * (30 < s < 70)), 2, 120
    ),
    "a collection now and then": with_collections(
        simulate(slower("forward", lambda r, s: 60 * (r == 1 and s in (20, 90))), 2, 120),
        {(1, 20): 60, (1, 90): 60},
    ),
    "a busy host": with_queue(
        simulate(slower("forward", lambda r, s: 5 * (random.Random(f"{r} {s}").random() < 0.5)), 3),
        lambda r, s: 5 * (random.Random(f"{r} {s}").random() < 0.5),
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_only_looks_like_a_fault_is_no_warning(name: str) -> None:
    assert found_in(HEALTHY[name]) == {}


@pytest.mark.parametrize("seed", range(15))
def test_a_busy_host_gives_no_warning_however_much_of_it_the_kernel_counts(seed: int) -> None:
    """Steps of 9 ms; each phase is a little longer at random, and some lose a time slice or two."""
    drawn = np.random.default_rng(seed)
    ranks, steps = int(drawn.integers(2, 5)), int(drawn.integers(20, 120))
    usual_ms = np.array([0.5, 2.0, 5.0, 0.5, 0.5])[:, None, None]
    spent = usual_ms + drawn.exponential(0.3, (5, ranks, steps))
    lost = (drawn.random((ranks, steps)) < drawn.choice([0.02, 0.1, 0.3])) * drawn.uniform(2, 8)
    place = drawn.integers(0, 5, (ranks, steps))
    np.put_along_axis(spent, place[None], np.take_along_axis(spent, place[None], 0) + lost, 0)
    run = simulate(lambda r, s: StepTimes(*spent[:, r, s].tolist()), ranks, steps)
    counted = drawn.choice([0.0, 0.5, 1.0])
    assert found_in(with_queue(run, lambda r, s: counted * lost[r, s])) == {}


# The pairs of which one is easily taken for the other.


def test_a_loader_without_cpus_is_not_said_to_be_slow() -> None:
    """Half of the input wait and more is the rank's own wait for a CPU, on all ranks."""
    starved = with_loader(
        with_queue(simulate(slower("input", lambda r, s: 15.0)), lambda r, s: 14.5), workers=0
    )
    said = found_in(starved, Severity.INFO)
    assert set(said) == {"DD106"}
    slow = with_loader(simulate(slower("input", lambda r, s: 15.0)), workers=0)
    assert set(found_in(slow, Severity.INFO)) == {"DD301"}


def test_bursts_of_a_loader_are_its_own_and_no_stall() -> None:
    run = with_loader(simulate(slower("input", lambda r, s: 60 * (s % 4 == 0)), 2, 80), workers=4)
    assert set(found_in(run, Severity.INFO)) == {"DD301"}


def test_input_that_grows_needs_no_workers() -> None:
    run = with_loader(simulate(slower("input", lambda r, s: 0.4 * s), 2, 120), workers=1)
    assert only(run, "DD109").culprits == ()


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer", "between"])
def test_though_the_walls_of_all_ranks_are_equal_the_late_one_is_found(
    phase: str, rank: int
) -> None:
    run = simulate(slower(phase, lambda r, s: 20 * (r == rank)), 3)
    walls = [times.step_ms for times in analyze(run).times]
    assert max(walls) - min(walls) < 1.0
    code = "DD108" if (rank, phase) == (0, "between") else "DD101"
    assert only(run, code).culprits == (rank,)


def test_a_machine_that_is_disturbed_blames_no_rank() -> None:
    """12 ms steps on a host whose CPUs others hold: the late rank is the one that had none."""

    def queued(r: int, s: int) -> float:
        return 6.0 if r == 1 or s % 3 == r else 1.0

    run = with_queue(simulate(slower("forward", queued), 3, 60), queued)
    assert found_in(run) == {}
    (finding,) = found_in(run, Severity.INFO)["DD106"]
    assert "disturbed" in finding.message


def test_a_lateness_below_what_ranks_differ_in_waiting_for_a_cpu_is_none() -> None:
    run = simulate(slower("forward", lambda r, s: 2.5 * (r == 1)))
    assert set(found_in(run)) == {"DD101"}
    assert set(found_in(with_queue(run, lambda r, s: 3.0))) == {"DD101"}
    assert found_in(with_queue(run, lambda r, s: 3.0 * ((r + s) % 2))) == {}


def test_a_busy_host_does_not_hide_a_rank_that_is_far_behind() -> None:
    run = with_queue(simulate(slower("forward", lambda r, s: 40 * (r == 1))), lambda r, s: 3.0)
    assert only(run, "DD101").culprits == (1,)


def test_two_causes_are_two_findings_the_dearer_first() -> None:
    def times(rank: int, step: int) -> StepTimes:
        return StepTimes(
            forward=25 if rank == 1 else 5, between=300 if rank == 0 and step % 10 == 9 else 0.5
        )

    run = simulate(times, 3, 80)
    said = found_in(run)
    assert set(said) == {"DD101", "DD108"}
    first, *_ = analyze(run).waiting
    assert first.ranks == (0,)
    assert said["DD101"][0].lost_s == pytest.approx(20e-3 * 72, rel=0.2)


def test_a_rank_that_is_missing_is_said_and_the_others_are_judged() -> None:
    run = simulate(slower("forward", lambda r, s: 30 * (r == 1)), 4)
    three = replace(run, ranks=run.ranks[:3])
    finding = only(three, "DD101")
    assert finding.culprits == (1,)
    assert finding.confidence.value == "possible"
    assert "of 3 ranks of 4" in finding.message


def test_a_missing_rank_that_is_later_yet_saves_the_last_of_those_recorded() -> None:
    run = simulate(slower("forward", lambda r, s: 10 * (r == 1) + 40 * (r == 3)), 4)
    assert found_in(replace(run, ranks=run.ranks[:3])) == {}


def test_a_single_rank_has_pauses_and_drift_too() -> None:
    pauses = {(0, step): 40.0 for step in range(3, 40, 3)}
    alone = with_collections(
        simulate(slower("forward", lambda r, s: pauses.get((r, s), 0.0)), 1, 40), pauses
    )
    assert "DD105" in found_in(alone)
    assert "DD109" in found_in(simulate(slower("optimizer", lambda r, s: 0.2 * s), 1, 120))


def test_by_own_times_alone_the_same_rank_is_named_where_clocks_differ() -> None:
    run = simulate(slower("forward", lambda r, s: 30 * (r == 1)), 3)
    apart = with_ranks(
        run, lambda trace: replace(trace, info=replace(trace.info, clock_id=f"{trace.info.rank}"))
    )
    edge = analyze(apart).frontier
    assert edge is not None
    assert (edge.rank, edge.share) == (1, 1.0)
    assert edge.excess_ms == pytest.approx(30, abs=0.5)
    (reason,) = [r.reason for r in run_checks(analyze(apart)) if r.code == "DD101"]
    assert reason is not None
    assert "rank 1 has most to do" in reason


spent = st.builds(StepTimes, *(st.floats(0.05, 40, allow_nan=False) for _ in range(5)))


@st.composite
def runs(draw) -> Run:
    ranks, steps = draw(st.integers(2, 4)), draw(st.integers(9, 14))
    cells = {(r, s): draw(spent) for r in range(ranks) for s in range(steps)}
    return simulate(lambda r, s: cells[r, s], ranks, steps)


@given(runs())
@settings(max_examples=25, deadline=None)
def test_the_factors_of_efficiency_multiply_and_none_is_above_one(run: Run) -> None:
    found = analyze(run).efficiency
    assert found is not None
    factors = (found.useful, found.balance, found.turns, found.transfer)
    assert np.prod(factors) == pytest.approx(found.total)
    assert all(0 <= factor <= 1 + 1e-9 for factor in factors)


@given(runs())
@settings(max_examples=25, deadline=None)
def test_the_frontier_splits_its_path_exactly(run: Run) -> None:
    edge = analyze(run).frontier
    assert edge is not None
    assert sum(edge.adds_ms.values()) == pytest.approx(edge.path_ms)
    assert all(ms >= 0 for ms in edge.adds_ms.values())


@given(runs())
@settings(max_examples=15, deadline=None)
def test_any_run_is_judged_alike_in_any_order_and_costs_no_more_than_it_took(run: Run) -> None:
    analysis = analyze(run)
    turned = analyze(replace(run, ranks=run.ranks[::-1]))
    assert turned.waiting == analysis.waiting
    for waiting in analysis.waiting:
        assert 0 <= waiting.lost_ms <= waiting.step_ms * 1.001


def test_each_rank_of_a_slow_host_has_a_usual_neighbour() -> None:
    """One late rank of a host is that rank; two of two are the host."""
    one = simulate(slower("forward", lambda r, s: 30 * (r == 3)), 4, hosts=HOSTS)
    assert only(one, "DD101").culprits == (3,)
    run = simulate(slower("forward", lambda r, s: 30 * (r > 1)), 4, hosts=HOSTS)
    assert only(run, "DD103").hosts == ("b",)


def test_the_second_witness_names_the_line() -> None:
    run = simulate(slower("between", lambda r, s: 30 * (r == 0)), 3)
    finding = only(with_samples(run, 0, Phase.BETWEEN, 50), "DD108")
    assert finding.confidence.value == "certain"
    assert finding.where
    assert only(run, "DD108").where == ()


def test_larger_batches_of_a_late_rank_are_said() -> None:
    run = with_batches(
        simulate(slower("forward", lambda r, s: 30 * (r == 1)), 3),
        lambda r, s: 100 + 200 * (r == 1),
    )
    assert "3.0 times as large" in only(run, "DD101").fix


def test_the_report_has_efficiency_and_frontier() -> None:
    run = simulate(slower("forward", lambda r, s: 30 * (r == 1)), 3)
    time = json.loads(to_json(run_report(analyze(run), [])))["time"]
    assert time["efficiency"]["balance"] == pytest.approx(0.58, abs=0.02)
    assert (time["frontier"]["rank"], time["frontier"]["share"]) == (1, 1.0)
    assert time["frontier"]["adds_ms"]["forward"] == pytest.approx(35, abs=1)


def test_a_collection_that_waits_for_a_cpu_itself_is_one_cause() -> None:
    """On a full host half of a pause is waiting for a CPU."""
    lengths = {(1, step): 80.0 for step in range(3, 60, 4)}
    pauses = lambda r, s: lengths.get((r, s), 0.0)
    run = with_collections(simulate(slower("forward", pauses), 2, 60), lengths)
    run = with_queue(run, lambda r, s: 0.9 * pauses(r, s))
    assert set(found_in(run, Severity.INFO)) == {"DD105"}


def test_a_step_without_a_cpu_does_not_hide_that_lateness_follows_the_batches() -> None:
    def times(rank: int, step: int) -> StepTimes:
        own = of_length(rank, step)
        return replace(own, input=own.input + 200 * ((rank, step) == (1, 30)))

    run = with_queue(simulate(times, 3, 60), lambda r, s: 200.0 * ((r, s) == (1, 30)))
    assert set(found_in(with_batches(run, lengths))) == {"DD102"}


def test_batches_that_grow_on_purpose_are_known_on_a_noisy_host_too() -> None:
    drawn = random.Random(1)
    noise = {(r, s): drawn.expovariate(0.5) for r in range(2) for s in range(120)}
    run = simulate(lambda r, s: StepTimes(forward=5 + 0.08 * s + noise[r, s]), 2, 120)
    assert "DD109" in found_in(run, Severity.INFO)
    assert "DD109" not in found_in(with_batches(run, lambda r, s: 100 + 2 * s), Severity.INFO)
