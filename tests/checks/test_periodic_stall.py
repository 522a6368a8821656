"""DD104 periodic-stall."""

from __future__ import annotations

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from tests.builders import StepTimes, result_of, simulate
from tests.waiting_builders import slower, usual


@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer", "between"])
def test_whose_it_is_and_in_which_phase(phase: str) -> None:
    run = simulate(slower(phase, lambda r, s: 150.0 * (r == 1 and s % 12 == 3)), 3, 100)
    (finding,) = result_of("DD104", run).findings
    assert finding.culprits == (1,)
    assert finding.message.startswith("every 12 steps rank 1 takes 1")
    assert ("work between" if phase == "between" else phase) in finding.message


def test_what_all_ranks_do_blames_none() -> None:
    run = simulate(slower("between", lambda r, s: 100.0 * (s % 10 == 3)), 3, 100)
    (finding,) = result_of("DD104", run).findings
    assert (finding.severity, finding.culprits) == (Severity.WARNING, ())
    assert "all ranks" in finding.message


def test_cheap_checkpoints_of_all_ranks_are_a_hint() -> None:
    run = simulate(slower("between", lambda r, s: 25.0 * (s % 20 == 3)), 2, 100)
    (finding,) = result_of("DD104", run).findings
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    "ms",
    [
        lambda r, s: 150.0 * (r == 1 and s in (9, 23, 30, 71, 77)),  # no interval
        lambda r, s: 150.0 * (r == 1 and s in (30, 60)),  # too few
        lambda r, s: 1.0 * (r == 1 and s % 10 == 3),  # too little
    ],
)
def test_other_stalls_are_clean(ms) -> None:
    assert result_of("DD104", simulate(slower("forward", ms), 2, 100)).outcome is Outcome.CLEAN


def test_a_late_rank_that_also_stalls_is_both() -> None:
    def times(rank: int, step: int) -> StepTimes:
        return StepTimes(forward=5 + 20 * (rank == 1) + 300 * (rank == 1 and step % 10 == 3))

    run = simulate(times, 2, 100)
    (stall,), (late,) = result_of("DD104", run).findings, result_of("DD101", run).findings
    assert stall.lost_s == pytest.approx(0.3 * 9, rel=0.1)
    assert late.lost_s == pytest.approx(20e-3 * 90, rel=0.1)


def test_few_steps_are_skipped() -> None:
    assert result_of("DD104", simulate(usual, 2, 6)).outcome is Outcome.SKIPPED
