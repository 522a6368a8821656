"""Reports for the tests of the dashboard, made of computed runs."""

from __future__ import annotations

from ddpdoctor.analysis import Analysis, analyze
from ddpdoctor.checks import run_checks
from ddpdoctor.report import Report, run_report
from ddpdoctor.tracefile import Run
from tests.builders import StepTimes, simulate

LATE_RANK = 2
LATE_MS = 30.0


def late_in_backward(rank: int, step: int) -> StepTimes:
    return StepTimes(backward=10.0 + (LATE_MS if rank == LATE_RANK else 0.0))


def late_run(ranks: int = 4, steps: int = 40) -> Run:
    """Rank 2 is late in every backward."""
    return simulate(late_in_backward, ranks, steps)


def late_analysis(ranks: int = 4, steps: int = 40) -> Analysis:
    return analyze(late_run(ranks, steps))


def report_on(run: Run) -> Report:
    analysis = analyze(run)
    return run_report(analysis, run_checks(analysis))


def late_report() -> Report:
    return report_on(late_run())
