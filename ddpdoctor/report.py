"""Check results of a run, a hang or a launch as one object, and that object as JSON and text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ddpdoctor.checks import CheckResult, Outcome
from ddpdoctor.findings import Finding, Severity

if TYPE_CHECKING:  # the report on a hang must load without pandas
    from ddpdoctor.analysis.model import Analysis, NamedTime, RankStats

SCHEMA_VERSION = 1
BESIDE_THE_STEPS = ("DD4", "DD9")  # codes that look at the launch and at the end of a run
CLOCK_ERROR_SHARE = 0.01  # of a step: a smaller error changes no verdict on it


@dataclass(frozen=True)
class Report:
    """What text, JSON, HTML and dashboard all show. `results` holds each code once."""

    subject: str  # "run", "hang" or "launch"
    name: str  # the run's id, or the job
    results: tuple[CheckResult, ...]
    analysis: Analysis | None = None
    notes: tuple[str, ...] = ()

    @property
    def findings(self) -> list[tuple[CheckResult, Finding]]:
        """All findings, the one to read first in front: by time lost, then by severity."""
        pairs = [(result, finding) for result in self.results for finding in result.findings]
        return sorted(pairs, key=lambda pair: _urgency(pair[1]))

    @property
    def primary(self) -> str | None:
        """Code of the finding to read first; None where nothing at warning or above was found."""
        for result, finding in self.findings:
            if finding.severity >= Severity.WARNING:
                return result.code
        return None


def _urgency(finding: Finding) -> tuple[bool, int, float]:
    """Learning the wrong thing goes first; then what is slow, by the time it costs; then hints."""
    below_warning = finding.severity < Severity.WARNING
    if finding.lost_s is not None:
        return (below_warning, 1, -finding.lost_s)
    return (below_warning, 0 if finding.severity is Severity.ERROR else 2, 0.0)


def run_report(analysis: Analysis, results: Sequence[CheckResult]) -> Report:
    """The report on a recorded run."""
    from ddpdoctor.analysis.recorded import recorded_notes

    info = analysis.run.info
    notes = [*analysis.run.problems, *recorded_notes(analysis.run)]
    for trace in analysis.run.ranks:
        notes += [f"rank {trace.info.rank}: {note}" for note in trace.notes]
    notes += analysis.unfinished
    notes += _clock_notes(analysis)
    return Report("run", info.run_id, tuple(results), analysis, tuple(notes))


def _clock_notes(analysis: Analysis) -> list[str]:
    """How far what is said across ranks can be trusted, where that is not far."""
    clock = analysis.tables.clock
    if not clock.comparable:
        return ["the ranks' clocks cannot be compared, so waiting and transfer are not told apart"]
    error_ms = clock.error_ns / 1e6
    if analysis.step_ms is None or error_ms < CLOCK_ERROR_SHARE * analysis.step_ms:
        return []
    return [f"the hosts' clocks are only known to within {error_ms:.1f} ms: waits that are "
            "shorter may be transfer, and the other way round"]  # fmt: skip


def exceeds(report: Report, fail_on: Severity | None) -> bool:
    """Whether a finding is at or above the severity that makes the exit status 1."""
    if fail_on is None:
        return False
    return any(finding.severity >= fail_on for _, finding in report.findings)


def why_no_verdict(report: Report) -> str | None:
    """The reason for which finding nothing must not be exit status 0; None where it may be.

    A run is judged by what was measured of its steps. That its ranks were launched alike, and that
    it ended, says nothing of them.
    """
    if report.analysis is not None and not report.analysis.steps.counted:
        return "no whole step was recorded on all ranks"
    looked = [r for r in report.results if r.outcome in (Outcome.FINDINGS, Outcome.CLEAN)]
    if report.subject == "run":
        looked = [result for result in looked if not result.code.startswith(BESIDE_THE_STEPS)]
    return None if looked else "no check could judge it; the reasons are in the report"


def crashed(report: Report) -> list[CheckResult]:
    """Checks that ended by a fault of their own."""
    return [result for result in report.results if result.outcome is Outcome.CRASH]


def to_json(report: Report) -> str:
    """The report object, design §6."""
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "subject": report.subject,
        "name": report.name,
        "primary": report.primary,
        "results": [_result(result) for result in report.results],
        "notes": list(report.notes),
    }
    if report.analysis is not None:
        document["time"] = _time(report.analysis)
        document["gains"] = asdict(report.analysis.gains)
    return json.dumps(document, indent=2)


def _result(result: CheckResult) -> dict[str, Any]:
    return {
        "code": result.code,
        "name": result.name,
        "outcome": result.outcome.value,
        "reason": result.reason,
        "findings": [_finding(finding) for finding in result.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        **asdict(finding),
        "severity": finding.severity.label,
        "confidence": finding.confidence.value,
    }


def _time(analysis: Analysis) -> dict[str, Any]:
    steps = analysis.steps
    return {
        "steps": {
            "counted": steps.counted,
            "warmup": steps.warmup,
            "first_sync": steps.first_sync,
            "last_sync": steps.last_sync,
        },
        "ranks": [_rank_time(rank) for rank in analysis.ranks],
        "named": [_named_time(named) for named in analysis.named],
        "recorder_ms": analysis.cost_ms_per_step,
        "efficiency": asdict(analysis.efficiency) if analysis.efficiency else None,
        "frontier": _frontier(analysis),
    }


def _frontier(analysis: Analysis) -> dict[str, Any] | None:
    edge = analysis.frontier
    if edge is None:
        return None
    adds = {phase.label: ms for phase, ms in edge.adds_ms.items()}
    return {
        "rank": edge.rank, "share": edge.share, "excess_ms": edge.excess_ms,
        "adds_ms": adds, "path_ms": edge.path_ms,
    }  # fmt: skip


def _rank_time(stats: RankStats) -> dict[str, Any]:
    return {"rank": stats.rank, "host": stats.host, "steps": stats.steps, **stats.times_by_name()}


def _named_time(named: NamedTime) -> dict[str, Any]:
    ranks = [{"rank": rank, "ms": ms} for rank, ms in sorted(named.ms_by_rank.items())]
    return {"name": named.name, "ranks": ranks}
