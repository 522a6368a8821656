"""What the log of a job adds to a diagnosis, or says alone.

One cause gives one finding: where a log and the processes (or the dumps) tell the same, its
evidence goes with theirs; where they tell different things, the earlier in time is the verdict and
the other is a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddpdoctor.checks import CheckResult, Outcome, log_checks, run_check
from ddpdoctor.errors import NothingToDiagnose
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.hang.joblog import JobLog
from ddpdoctor.hang.logfiles import read_logs
from ddpdoctor.report import Report

_BEFORE_ALL = ("DD901", "DD407", "DD408")  # in a log: what came first explains what hangs


@dataclass(frozen=True)
class LogVerdict:
    """The checks on one job's logs."""

    log: JobLog
    results: tuple[CheckResult, ...]
    name: str

    @property
    def findings(self) -> list[tuple[CheckResult, Finding]]:
        return [(result, finding) for result in self.results for finding in result.findings]

    def report(self) -> Report:
        return Report("hang", self.name, self.results, notes=self.log.problems)


def judge_logs(paths: Sequence[Path]) -> LogVerdict:
    """What the logs say by themselves. Raises NothingToDiagnose if they say nothing of an end."""
    name = ", ".join(str(path) for path in paths[:3]) + (", …" if len(paths) > 3 else "")
    return judge_log(read_logs(paths), name)


def judge_log(log: JobLog, name: str) -> LogVerdict:
    return LogVerdict(log, tuple(run_check(check, log) for check in log_checks()), name)


def must_say_something(verdict: LogVerdict) -> None:
    """Raises NothingToDiagnose."""
    if verdict.log.says_nothing:
        raise NothingToDiagnose(
            f"{verdict.name}: tells of no error, timeout or killed process of torch, NCCL, gloo, "
            "torchrun, Slurm or the kernel"
        )


def with_log(report: Report, verdict: LogVerdict, *, alive: bool) -> Report:
    """The report on what was seen or left, and what the log adds to it."""
    told = verdict.findings
    own = [f for _, f in report.findings if f.severity >= Severity.WARNING]
    notes = (*report.notes, *verdict.log.problems)
    if not told:
        return replace(report, notes=notes)
    if not own or (not alive and told[0][0].code in _BEFORE_ALL and not _same(report, verdict)):
        notes += tuple(f"seen beside the log: {finding.message}" for finding in own)
        return replace(report, results=_instead(report.results, verdict.results), notes=notes)
    results = tuple(_with_evidence(result, verdict) for result in report.results)
    codes = {result.code for result in report.results if result.findings}
    notes += tuple(
        f"by the log ({result.code}): {finding.message}"
        for result, finding in told
        if result.code not in codes
    )
    return replace(report, results=results, notes=notes)


def _same(report: Report, verdict: LogVerdict) -> bool:
    return any(
        result.code == other.code and set(finding.culprits) & set(said.culprits)
        for result, finding in report.findings
        for other, said in verdict.findings
    )


def _instead(
    seen: tuple[CheckResult, ...], told: tuple[CheckResult, ...]
) -> tuple[CheckResult, ...]:
    """Each code once: what the log finds, and the other checks without findings."""
    by_code = {result.code: result for result in told if result.findings}
    quiet = {result.code: result for result in (*told, *seen) if not result.findings}
    for result in seen:
        if result.findings and result.code not in by_code:
            quiet.setdefault(
                result.code,
                CheckResult(result.code, result.name, Outcome.SKIPPED, reason=_EXPLAINED),
            )
    return tuple(result for _, result in sorted((quiet | by_code).items()))


_EXPLAINED = "what it saw follows from what the log tells"


def _with_evidence(result: CheckResult, verdict: LogVerdict) -> CheckResult:
    """Finding by finding of one code, the log's evidence behind what was seen."""
    told = [finding for other, finding in verdict.findings if other.code == result.code]
    if not told or not result.findings:
        return result
    first, *others = result.findings
    evidence = tuple(
        replace(each, what=f"log, {each.what}") for finding in told for each in finding.evidence
    )
    where = first.where or told[0].where
    first = replace(first, evidence=first.evidence + evidence, where=where)
    return replace(result, findings=(first, *others))
