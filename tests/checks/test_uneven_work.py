"""DD102 uneven-work."""

from __future__ import annotations

import random

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from tests.builders import StepTimes, result_of, simulate
from tests.waiting_builders import slower, usual, with_batches


def length(rank: int, step: int) -> int:
    return random.Random(f"{rank} {step}").randint(20, 400)


def quadratic(rank: int, step: int) -> StepTimes:
    return StepTimes(forward=2 + (length(rank, step) / 80) ** 2)


def linear(rank: int, step: int) -> StepTimes:
    noise = random.Random(f"{step} {rank}").uniform(-1, 1)
    return StepTimes(forward=3 + noise + 0.05 * length(rank, step))


@pytest.mark.parametrize("times", [linear, quadratic])
@pytest.mark.parametrize("ranks", [2, 4])
def test_lateness_that_follows_the_batches_blames_no_rank(times, ranks: int) -> None:
    run = with_batches(simulate(times, ranks, 60), length)
    (finding,) = result_of("DD102", run).findings
    assert finding.severity >= Severity.WARNING
    assert finding.culprits == ()
    assert "elements" in finding.fix
    assert "No rank or host is to blame" in finding.fix
    assert result_of("DD101", run).outcome is Outcome.CLEAN


def test_ranks_that_are_late_in_turn_for_another_reason_are_a_hint() -> None:
    run = with_batches(simulate(quadratic, 3, 60), lambda rank, step: 100 + (7 * step + rank) % 5)
    (finding,) = result_of("DD102", run).findings
    assert finding.severity is Severity.INFO
    assert "Measure next" in finding.fix


def test_a_rank_whose_batches_are_always_larger_is_late_for_itself() -> None:
    run = with_batches(
        simulate(slower("forward", lambda r, s: 20.0 * (r == 1))), lambda r, s: 10 + 50 * (r == 1)
    )
    assert result_of("DD102", run).outcome is Outcome.CLEAN
    assert result_of("DD101", run).outcome is Outcome.FINDINGS


def test_equal_batches_and_uneven_ones_that_cost_nothing_are_clean() -> None:
    assert result_of("DD102", simulate(usual)).outcome is Outcome.CLEAN
    assert result_of("DD102", with_batches(simulate(usual), length)).outcome is Outcome.CLEAN


def test_one_rank_is_skipped() -> None:
    assert result_of("DD102", simulate(usual, 1)).outcome is Outcome.SKIPPED
