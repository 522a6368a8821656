"""DD108 rank0-extra-work."""

from __future__ import annotations

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import Phase
from ddpdoctor.findings import Confidence, Severity
from tests.builders import LINE, result_of, simulate, with_samples
from tests.waiting_builders import slower, usual


def test_work_after_every_step_is_named_with_its_line() -> None:
    run = simulate(slower("between", lambda r, s: 30.0 * (r == 0)), 3)
    (finding,) = result_of("DD108", with_samples(run, 0, Phase.BETWEEN, 40)).findings
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.where[0].line == LINE[Phase.BETWEEN].line
    assert finding.lost_s == pytest.approx(30e-3 * 36, rel=0.05)
    assert result_of("DD101", run).outcome is Outcome.CLEAN


def test_saving_at_intervals_says_them() -> None:
    run = simulate(slower("between", lambda r, s: 300.0 * (r == 0 and s % 10 == 9)), 2, 60)
    (finding,) = result_of("DD108", run).findings
    assert "every 10 steps" in finding.message
    assert result_of("DD104", run).outcome is Outcome.CLEAN


def test_now_and_then_needs_no_interval() -> None:
    run = simulate(slower("between", lambda r, s: 300.0 * (r == 0 and s in (13, 30, 34))), 2, 60)
    (finding,) = result_of("DD108", run).findings
    assert "in 3 steps" in finding.message
    assert finding.severity >= Severity.WARNING


def test_a_single_save_is_a_hint() -> None:
    run = simulate(slower("between", lambda r, s: 900.0 * (r == 0 and s == 40)), 2, 60)
    (finding,) = result_of("DD108", run).findings
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(("phase", "rank"), [("between", 1), ("forward", 0), ("input", 0)])
def test_another_rank_or_phase_is_a_late_rank(phase: str, rank: int) -> None:
    run = simulate(slower(phase, lambda r, s: 30.0 * (r == rank)), 3)
    assert result_of("DD108", run).outcome is Outcome.CLEAN
    (finding,) = result_of("DD101", run).findings
    assert finding.culprits == (rank,)


def test_what_all_ranks_do_between_their_steps_is_not_rank_0s() -> None:
    run = simulate(slower("between", lambda r, s: 30.0), 3)
    assert result_of("DD108", run).outcome is Outcome.CLEAN
    assert result_of("DD108", simulate(usual)).outcome is Outcome.CLEAN
