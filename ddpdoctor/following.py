"""A run that is still written, read again as it grows; once it stands still, its hang is judged."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from ddpdoctor.analysis import analyze
from ddpdoctor.checks import CheckResult, Outcome, run_checks
from ddpdoctor.diagnose import diagnose
from ddpdoctor.errors import DdpDoctorError
from ddpdoctor.report import Report, run_report
from ddpdoctor.runfolders import attempt_folder
from ddpdoctor.tracefile import Run, load_run

STILL_S: Final = 4.0  # without a record: longer than the sentinel of a rank takes to note a stall
LOOK_S: Final = 6.0  # for the look at the processes of a job that stands still
HANG: Final = "DD9"
Signature = tuple[tuple[str, int, int], ...]


class Course(StrEnum):
    """What the run does."""

    ENDED = "ended"  # all ranks closed their record
    RUNNING = "running"
    STILL = "standing still"  # open, and nothing was written for a while


def first_report(path: Path | None) -> Report:
    """The report on a run as it lies there now. Raises NotARun, BadTraceFile."""
    analysis = analyze(load_run(path))
    return run_report(analysis, run_checks(analysis))


@dataclass
class Follower:
    """Looks at a run's folder each time it is asked."""

    folder: Path
    now: Callable[[], float] = time.time
    _seen: Signature = ()
    _judged_still: bool = field(default=False)
    course: Course = Course.ENDED

    @classmethod
    def of(cls, report: Report) -> Follower:
        """Of the report that is shown already. A hang is judged anew, with its processes."""
        if report.analysis is None:
            raise ValueError("only a recorded run can be followed")
        run = report.analysis.run
        made = cls(attempt_folder(run.path))
        made._seen = made._signature()
        made.course = Course.ENDED if _is_closed(run) else Course.RUNNING
        return made

    def look(self) -> Report | None:
        """A new report where the run has grown, or has come to stand still; else None."""
        signature = self._signature()
        grown, self._seen = signature != self._seen, signature
        still = self.course is not Course.ENDED and self.quiet_s() >= STILL_S
        if not grown and (not still or self._judged_still):
            return None
        self._judged_still = still
        try:
            report = first_report(self.folder)
        except (DdpDoctorError, OSError):
            return None  # it is being moved, or its files are damaged: what is shown stays
        return self._judged(report, still)

    def _judged(self, report: Report, still: bool) -> Report:
        assert report.analysis is not None  # noqa: S101  first_report always has one
        run = report.analysis.run
        if _is_closed(run):
            self.course = Course.ENDED
            return report
        self.course = Course.STILL if still else Course.RUNNING
        if not still:
            return replace(report, results=tuple(map(_not_yet, report.results)))
        return _with_processes(report, run)

    def quiet_s(self) -> float:
        """Seconds since a rank wrote a record."""
        written = [mtime for name, mtime, _ in self._seen if name.endswith(".ddt")]
        return self.now() - max(written, default=0) / 1e9

    def _signature(self) -> Signature:
        entries = []
        with os.scandir(self.folder) as found:
            for entry in found:
                if entry.name.startswith("rank"):
                    state = entry.stat()
                    entries.append((entry.name, state.st_mtime_ns, state.st_size))
        return tuple(sorted(entries))


def _is_closed(run: Run) -> bool:
    return all(trace.closed for trace in run.ranks)


def _not_yet(result: CheckResult) -> CheckResult:
    """While records come, a rank that has not arrived yet is no hang."""
    if not result.code.startswith(HANG) or result.outcome is not Outcome.FINDINGS:
        return result
    reason = "the job still makes progress"
    return replace(result, outcome=Outcome.SKIPPED, findings=(), reason=reason)


def _with_processes(report: Report, run: Run) -> Report:
    """With what the processes say of the hang, where they are on this host; they know more."""
    own = [trace.info for trace in run.ranks if trace.info.host == socket.gethostname()]
    if not own:
        return report
    try:
        seen = diagnose(own[0].pid, LOOK_S)
    except DdpDoctorError:
        return report  # its processes are gone, or are not ours to look at
    results = {result.code: result for each in seen for result in each.report.results}
    found = {code for code, result in results.items() if result.outcome is Outcome.FINDINGS}
    if not found:
        return report
    kept = [
        result
        for result in report.results
        if result.code not in results and not result.code.startswith(HANG)
    ]
    return replace(report, results=(*results.values(), *kept))
