"""A report to go with a generated run: its three faults, as checks would say them."""

from __future__ import annotations

from benchmarks.timeline.generate import faults_of
from ddpdoctor.analysis import analyze
from ddpdoctor.analysis.timeline import Timeline
from ddpdoctor.checks import CheckResult, Outcome
from ddpdoctor.findings import Confidence, Finding, Severity
from ddpdoctor.report import Report
from tests.builders import StepTimes, simulate


def report_of(timeline: Timeline) -> Report:
    """The analysis within is of a small run: other pages are not measured."""
    ranks, steps = len(timeline.ranks), len(timeline.grid.syncs)
    faults = faults_of(ranks)
    throttled = tuple(range(ranks))[faults.throttled]
    analysis = analyze(simulate(lambda rank, step: StepTimes(), 2, 5))
    results = (
        CheckResult("DD101", "late-rank", Outcome.FINDINGS, (
            _finding(f"rank {faults.slow} arrives last in most steps", (faults.slow,),
                     (1, steps), 6.0),)),
        CheckResult("DD109", "drift", Outcome.FINDINGS, (
            _finding(f"{len(throttled)} ranks ran slower for a while", throttled,
                     (int(steps * 0.55) + 1, int(steps * 0.63)), 1.2),)),
        CheckResult("DD301", "input-bound", Outcome.FINDINGS, (
            _finding(f"{len(faults.stalling)} ranks stall for input", faults.stalling[:1],
                     (1, steps), 3.1),)),
    )  # fmt: skip
    return Report("run", f"generated-{ranks}x{steps}", results, analysis)


def _finding(
    message: str, culprits: tuple[int, ...], steps: tuple[int, int], lost_s: float
) -> Finding:
    return Finding(
        Severity.WARNING, Confidence.LIKELY, message, "look at its host", culprits=culprits,
        steps=(steps,), lost_s=lost_s,
    )  # fmt: skip
