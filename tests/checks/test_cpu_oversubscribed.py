"""DD106 cpu-oversubscribed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from ddpdoctor.tracefile import Run
from tests.builders import result_of, simulate, with_ranks
from tests.waiting_builders import slower, usual, with_queue


def waiting(ms: float, ranks: int = 2) -> Run:
    """All ranks wait so long for a CPU in their forward."""
    return with_queue(simulate(slower("forward", lambda r, s: ms), ranks), lambda r, s: ms)


def with_facts(run: Run, **facts: object) -> Run:
    return with_ranks(run, lambda trace: replace(trace, info=replace(trace.info, **facts)))


@pytest.mark.parametrize(("ms", "severity"), [(6, Severity.WARNING), (40, Severity.ERROR)])
def test_more_threads_than_cpus_are_the_jobs_own_doing(ms: float, severity: Severity) -> None:
    (finding,) = result_of("DD106", with_facts(waiting(ms), threads=16, cpus=2)).findings
    assert finding.severity is severity
    assert finding.culprits == ()
    assert "2 ranks ask for 32 threads on 2 CPUs" in finding.message
    assert "OMP_NUM_THREADS=1" in finding.fix


def test_too_many_threads_are_of_all_ranks_whichever_finds_no_cpu() -> None:
    late = slower("forward", lambda r, s: 30.0 * (r == 1))
    run = with_queue(simulate(late), lambda r, s: 30.0 * (r == 1))
    (finding,) = result_of("DD106", with_facts(run, threads=16, cpus=2)).findings
    assert finding.culprits == ()


@pytest.mark.parametrize(("threads", "cpus"), [(1, 8), (4, 8), (1, 1), (None, None)])
def test_without_too_many_threads_it_is_a_disturbed_measurement(
    threads: int | None, cpus: int | None
) -> None:
    """One thread a rank is never too many, however few CPUs there are."""
    (finding,) = result_of("DD106", with_facts(waiting(40), threads=threads, cpus=cpus)).findings
    assert finding.severity is Severity.INFO
    assert "disturbed" in finding.message


def test_ranks_that_may_use_the_same_cpu_only_are_named() -> None:
    """Ranks 2 and 3 are bound to CPU 2, on a host that has four."""

    def bound(trace):
        cpu = min(trace.info.rank, 2)
        info = replace(trace.info, allowed_cpus=((cpu, cpu),), host_cpus=4, cpus=1, threads=1)
        return replace(trace, info=info)

    late = slower("forward", lambda r, s: 12.0 * (r > 1))
    run = with_ranks(with_queue(simulate(late, 4), lambda r, s: 12.0 * (r > 1)), bound)
    (finding,) = result_of("DD106", run).findings
    assert finding.severity is Severity.WARNING
    assert finding.culprits == (2, 3)
    assert "ranks 2 and 3 may use the same CPUs only" in finding.message
    assert "CPUs of their own" in finding.fix


@pytest.mark.parametrize("ms", [0, 1, 3])
def test_a_little_waiting_is_usual(ms: float) -> None:
    run = with_facts(waiting(ms), threads=16, cpus=2)
    assert result_of("DD106", run).outcome is Outcome.CLEAN


def test_waiting_beside_a_later_rank_costs_nothing() -> None:
    late = slower("forward", lambda r, s: 10.0 if r == 0 else 40.0)
    run = with_queue(simulate(late), lambda r, s: 10.0 * (r == 0))
    assert result_of("DD106", run).outcome is Outcome.CLEAN


def test_where_the_kernel_does_not_count_it_is_skipped() -> None:
    run = with_ranks(simulate(usual), lambda trace: replace(trace, parts=frozenset()))
    assert result_of("DD106", run).outcome is Outcome.SKIPPED
