"""A run that is still written, read again as it grows; once it stands still, its hang is judged."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
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

GONE_S: Final = 5.0  # a recorder that lives writes to its file each second, also in a hang
LOOK_S: Final = 6.0  # for the look at the processes of a job that stands still
HANG: Final = "DD9"
Signature = tuple[tuple[str, int, int], ...]  # name, when it was written, bytes


class Course(StrEnum):
    """What the run does."""

    ENDED = "ended"  # all ranks closed their record
    RUNNING = "running"
    OPEN = "not closed"  # nobody follows it: killed, hanging or running
    STILL = "standing still"  # each rank noted that nothing moves, or is gone without a word


def course_unseen(run: Run) -> Course:
    """What a run says of itself that nobody follows."""
    return Course.ENDED if all(trace.closed for trace in run.ranks) else Course.OPEN


def first_report(path: Path | None) -> Report:
    """The report on a run as it lies there now. Raises NotARun, BadTraceFile."""
    analysis = analyze(load_run(path))
    return run_report(analysis, run_checks(analysis))


class Follower:
    """Looks at a run's folder each time it is asked. `now` is the time of the files' clock."""

    def __init__(self, report: Report, now: Callable[[], float] = time.time) -> None:
        if report.analysis is None:
            raise ValueError("only a recorded run can be followed")
        self._folder = attempt_folder(report.analysis.run.path)
        self._now = now
        self._still_since = 0.0
        self.course = Course.RUNNING
        files = list(self._files())
        self.report = self._judged(report)  # the given one, as it is to be shown now
        self._seen = self._signature(files)

    def look(self) -> Report | None:
        """A new report where the run has grown, or has come to stand still; else None."""
        files = list(self._files())
        if self._signature(files) == self._seen:
            return None
        try:
            self.report = self._judged(first_report(self._folder))
        except (DdpDoctorError, OSError):
            return None  # it is being moved, or its files are damaged: what is shown stays
        finally:
            self._seen = self._signature(files)
        return self.report

    @property
    def still_s(self) -> float:
        """For how long it has been known to stand still."""
        return self._now() - self._still_since if self.course is Course.STILL else 0.0

    def _judged(self, report: Report) -> Report:
        assert report.analysis is not None  # noqa: S101  that of a recorded run
        run = report.analysis.run
        before, self.course = self.course, self._course_of(run)
        if self.course is Course.ENDED:
            return report
        if self.course is Course.RUNNING:
            return replace(report, results=tuple(map(_not_yet, report.results)))
        if before is not Course.STILL:
            self._still_since = self._now()
        return _with_processes(report, run)

    def _course_of(self, run: Run) -> Course:
        open_ranks = [trace for trace in run.ranks if not trace.closed]
        if not open_ranks:
            return Course.ENDED
        gone = {name for name, written_ns, _ in self._files() if self._is_gone(written_ns)}
        still = all(trace.stall is not None or trace.path.name in gone for trace in open_ranks)
        return Course.STILL if still else Course.RUNNING

    def _is_gone(self, written_ns: int) -> bool:
        return self._now() - written_ns / 1e9 > GONE_S

    def _signature(self, files: list[tuple[str, int, int]]) -> Signature:
        """What tells that it has changed. In a hang the recorder goes on to write that it lives."""
        entries = []
        for name, written_ns, size in files:
            is_record = name.endswith(".ddt")
            if is_record and (self.course is Course.STILL or self._is_gone(written_ns)):
                entries.append((name, 0, int(self._is_gone(written_ns))))
            else:
                entries.append((name, written_ns, size))
        return tuple(sorted(entries))

    def _files(self) -> Iterator[tuple[str, int, int]]:
        with os.scandir(self._folder) as found:
            for entry in found:
                if entry.name.startswith("rank"):
                    state = entry.stat()
                    yield entry.name, state.st_mtime_ns, state.st_size


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
