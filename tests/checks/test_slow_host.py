"""DD103 slow-host."""

from __future__ import annotations

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from tests.builders import StepTimes, result_of, simulate
from tests.waiting_builders import slower, usual, with_queue

TWO = ("a", "a", "b", "b")
THREE = ("a", "a", "b", "b", "c", "c")


@pytest.mark.parametrize(("hosts", "slow"), [(TWO, "a"), (TWO, "b"), (THREE, "c")])
def test_all_ranks_of_the_host_are_named(hosts: tuple[str, ...], slow: str) -> None:
    def times(rank: int, _step: int) -> StepTimes:
        return StepTimes(forward=8, backward=16) if hosts[rank] == slow else StepTimes()

    (finding,) = result_of("DD103", simulate(times, len(hosts), hosts=hosts)).findings
    assert finding.severity is Severity.ERROR
    assert finding.culprits == tuple(r for r, host in enumerate(hosts) if host == slow)
    assert finding.hosts == (slow,)
    assert slow in finding.fix
    assert "forward +3.0 ms" in finding.fix
    assert "backward +6.0 ms" in finding.fix


def test_a_host_that_only_waits_for_its_storage_is_told_so() -> None:
    run = simulate(slower("input", lambda r, s: 15.0 * (r > 1)), 4, hosts=TWO)
    (finding,) = result_of("DD103", run).findings
    assert "storage" in finding.fix


def test_late_after_the_first_bucket_counts_too() -> None:
    run = simulate(
        slower("backward", lambda r, s: 20.0 * (r > 1)), 4, hosts=TWO, transfer_ms=(0.5,) * 4
    )
    (finding,) = result_of("DD103", run).findings
    assert finding.lost_s == pytest.approx(20e-3 * 36, rel=0.05)


@pytest.mark.parametrize("late", [(2,), (1, 2), (0, 1, 2), ()])
def test_other_ranks_that_are_late_are_no_slow_host(late: tuple[int, ...]) -> None:
    run = simulate(slower("forward", lambda r, s: 20.0 * (r in late)), 4, hosts=TWO)
    assert result_of("DD103", run).outcome is Outcome.CLEAN


def test_a_host_without_free_cpus_is_not_said_to_be_slow() -> None:
    run = simulate(slower("forward", lambda r, s: 20.0 * (r > 1)), 4, hosts=TWO)
    busy = with_queue(run, lambda r, s: 20.0 * (r > 1))
    assert result_of("DD103", busy).outcome is Outcome.CLEAN
    (finding,) = result_of("DD106", busy).findings
    assert finding.culprits == (2, 3)


def test_one_host_is_skipped() -> None:
    result = result_of("DD103", simulate(usual, 4))
    assert (result.outcome, result.reason) == (Outcome.SKIPPED, "all ranks are on one host")
