"""DD107 cpu-throttled."""

from __future__ import annotations

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from tests.builders import result_of, simulate
from tests.waiting_builders import slower, usual, with_queue, with_quota


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_rank_that_a_quota_holds_is_named(ranks: int) -> None:
    def stopped(rank: int, step: int) -> float:
        return 80.0 * (rank == 1 and step % 3 == 0)  # the quota is spent in each third step

    run = with_quota(simulate(slower("backward", stopped), ranks, 60), stopped)
    (finding,) = result_of("DD107", run).findings
    assert finding.severity is Severity.ERROR
    assert finding.culprits == (1,)
    assert finding.lost_s == pytest.approx(0.080 * 18, rel=0.1)
    assert "quota" in finding.fix
    for other in ("DD101", "DD104", "DD106"):
        assert result_of(other, run).outcome is Outcome.CLEAN


def test_all_ranks_under_a_quota_blame_none_alone() -> None:
    run = with_quota(simulate(slower("forward", lambda r, s: 20.0)), lambda r, s: 20.0)
    (finding,) = result_of("DD107", run).findings
    assert finding.culprits == ()


def test_waiting_for_a_cpu_without_a_quota_is_not_throttling() -> None:
    run = with_queue(simulate(slower("forward", lambda r, s: 20.0)), lambda r, s: 20.0)
    assert result_of("DD107", run).outcome is Outcome.CLEAN
    assert result_of("DD106", run).outcome is Outcome.FINDINGS


def test_a_quota_that_is_never_spent_is_clean() -> None:
    run = with_quota(simulate(usual), lambda r, s: 0.0)
    assert result_of("DD107", run).outcome is Outcome.CLEAN


def test_where_quotas_cannot_be_seen_it_is_skipped() -> None:
    assert result_of("DD107", simulate(usual)).outcome is Outcome.SKIPPED
