"""DD109 drift."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import Phase
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.tracefile import Run
from tests.builders import StepTimes, result_of, simulate, with_ranks
from tests.waiting_builders import slower, usual, with_batches, with_queue

STEPS = 120


@pytest.mark.parametrize("phase", ["input", "optimizer", "between"])
def test_a_term_that_grows_on_all_ranks(phase: str) -> None:
    (finding,) = result_of("DD109", growing(phase)).findings
    assert finding.severity >= Severity.WARNING
    assert finding.culprits == ()
    assert f"in {phase}" in finding.message
    assert "little by little" in finding.message
    assert "list that is kept" in finding.fix


def growing(phase: str, ms_a_step: float = 0.15) -> Run:
    return simulate(slower(phase, lambda r, s: ms_a_step * s), 2, STEPS)


def test_from_a_point_on() -> None:
    run = simulate(slower("between", lambda r, s: 12.0 * (s >= 70)), 2, STEPS)
    (finding,) = result_of("DD109", run).findings
    assert "from step 7" in finding.message
    assert finding.lost_s == pytest.approx(12e-3 * 50, rel=0.2)


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("ms", [lambda s: 0.2 * s, lambda s: 15.0 * (s > 50)])
def test_a_rank_that_computes_more_slowly_is_named(phase: str, ms) -> None:
    run = simulate(slower(phase, lambda r, s: ms(s) * (r == 2)), 3, STEPS)
    (finding,) = result_of("DD109", run).findings
    assert finding.culprits == (2,)
    assert "temperature" in finding.fix
    assert result_of("DD101", run).outcome is Outcome.CLEAN


def test_a_rank_that_comes_later_by_a_little_of_everything_is_a_hint() -> None:
    """As on a host that is disturbed: told of a healthy training of 60 short steps."""

    def times(rank: int, step: int) -> StepTimes:
        more = 2.0 * (rank == 1 and step > 50)
        return StepTimes(input=2 + more, forward=5 + more, between=1 + more)

    (finding,) = result_of("DD109", simulate(times, 2, STEPS)).findings
    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)
    assert "Not known which term grows" in finding.fix


def test_a_rank_that_was_late_before_and_is_a_little_more_is_a_late_rank() -> None:
    run = simulate(slower("forward", lambda r, s: (30 + 0.05 * s) * (r == 1)), 2, STEPS)
    assert result_of("DD109", run).outcome is Outcome.CLEAN
    assert result_of("DD101", run).outcome is Outcome.FINDINGS


def test_slower_computing_on_all_ranks_at_once_may_be_the_machine() -> None:
    run = simulate(slower("forward", lambda r, s: 8.0 * (s > 60)), 2, STEPS)
    (finding,) = result_of("DD109", run).findings
    assert finding.severity is Severity.INFO


def test_where_ranks_wait_for_a_cpu_more_and_more_nothing_drifts() -> None:
    queue = lambda r, s: 0.2 * s
    run = with_queue(simulate(slower("forward", queue), 2, STEPS), queue)
    assert result_of("DD109", run).outcome is Outcome.CLEAN


def test_batches_that_grow_on_purpose_are_clean() -> None:
    run = with_batches(growing("forward", 0.2), lambda r, s: 50 + 2 * s)
    assert result_of("DD109", run).outcome is Outcome.CLEAN
    same = with_batches(growing("forward", 0.2), lambda r, s: 50)
    assert result_of("DD109", same).outcome is Outcome.FINDINGS


@pytest.mark.parametrize(
    "ms",
    [
        lambda s: 0.0,
        lambda s: 20.0 * (s < 20),  # slow at first
        lambda s: 20.0 * (40 < s < 80),  # and gone again
        lambda s: 0.01 * s,  # a percent or two
        lambda s: 300.0 * (s == 110),
    ],
)
def test_what_is_small_or_does_not_last_is_clean(ms) -> None:
    run = simulate(slower("between", lambda r, s: ms(s)), 2, STEPS)
    assert result_of("DD109", run).outcome is Outcome.CLEAN


def test_transfers_that_grow_on_one_host_are_a_hint() -> None:
    """As a network: gloo between hosts is a warning."""

    def later(trace):
        return replace(trace, info=replace(trace.info, network_id="one"))

    run = slow_transfers()
    (warned,), (hinted,) = (result_of("DD109", r).findings for r in (run, with_ranks(run, later)))
    assert warned.severity >= Severity.WARNING
    assert "network" in warned.fix
    assert hinted.severity is Severity.INFO


def slow_transfers() -> Run:
    """Each step's blocked time and its collectives end later, and all that follows begins later."""

    def stretch(trace):
        detail = trace.detail.copy()
        for step in range(STEPS):
            ends = detail["end_ns"][
                (detail["step"] == step) & (detail["code"] == Phase.BLOCKED) & (detail["kind"] == 1)
            ]
            more = int(0.2e6 * step)
            for column in ("begin_ns", "issued_ns"):
                detail[column][detail[column] >= ends[0]] += more
            detail["end_ns"][detail["end_ns"] >= ends[0]] += more
        return replace(trace, detail=detail)

    return with_ranks(simulate(usual, 2, STEPS, transfer_ms=(2.0,)), stretch)


def test_few_steps_are_skipped() -> None:
    assert result_of("DD109", simulate(usual, 2, 25)).outcome is Outcome.SKIPPED
    assert result_of("DD109", simulate(lambda r, s: StepTimes(), 2)).outcome is Outcome.CLEAN
