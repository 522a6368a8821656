"""The report on a launch of which nothing was recorded: by the notes that its ranks left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpdoctor.checks import CheckResult, Outcome, launch_checks, run_check
from ddpdoctor.launchfacts import LaunchFacts
from ddpdoctor.launchrecord import read_launch
from ddpdoctor.report import Report


@dataclass(frozen=True)
class LaunchVerdict:
    """What is said of a launch, and of whom: the ranks that were to meet at each place."""

    report: Report
    meetings: tuple[LaunchFacts, ...]

    @property
    def why_none(self) -> str | None:
        """Why finding nothing says nothing; None where it does."""
        if not self.meetings:
            return "none of its notes can be read"
        if not self.report.findings and any(facts.apart for facts in self.meetings):
            return "some ranks have not joined their process group, and no check says why"
        return None


def launch_verdict(run: Path) -> LaunchVerdict:
    """Judge the launch by what it left in the folder of its run."""
    launch = read_launch(run)
    judged = [[run_check(check, facts) for check in launch_checks()] for facts in launch.meetings]
    results = tuple(_together(of_one) for of_one in zip(*judged, strict=True))
    return LaunchVerdict(
        Report(
            "launch", launch.name, results, notes=tuple(_notes(launch.meetings, launch.unreadable))
        ),
        launch.meetings,
    )


def _together(results: Sequence[CheckResult]) -> CheckResult:
    """What one check says of several meetings."""
    first = results[0]
    findings = tuple(finding for result in results for finding in result.findings)
    for outcome in (Outcome.FINDINGS, Outcome.CRASH, Outcome.CLEAN):
        for result in results:
            if result.outcome is outcome:
                return CheckResult(first.code, first.name, outcome, findings, result.reason)
    return first


def _notes(meetings: Sequence[LaunchFacts], unreadable: int) -> list[str]:
    notes = []
    if unreadable:
        notes.append(f"what {unreadable} of the processes noted could not be read")
    if meetings and not any(facts.apart for facts in meetings):
        notes.append(
            "all ranks joined their process group, and recorded no DistributedDataParallel model: "
            "only the launch is judged"
        )
    return notes
