"""`ddpdoctor diagnose`: look at the jobs of this host, or at what a job left; judge, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.checks import Outcome, dump_checks, hang_checks, run_check
from ddpdoctor.errors import NothingToDiagnose
from ddpdoctor.hang.alike import explained
from ddpdoctor.hang.calls import Dumps
from ddpdoctor.hang.joblog import JobLog
from ddpdoctor.hang.look import WATCH_S, take_snapshots
from ddpdoctor.hang.processes import Processes
from ddpdoctor.hang.ruledout import ruled_out
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.hang.standing import Standing, standing
from ddpdoctor.report import Report

if TYPE_CHECKING:  # msgspec and more: only where there is a log
    from ddpdoctor.diagnose_log import LogVerdict


# of a recorded run: ranks with unequally many batches, or a step apart, hang at the end of it
_TELL_WHY = ("DD304", "DD506")
_AT_START = ("DD404", "DD405")  # the same of ranks that were not started or wrapped alike


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on one job, and what was seen: its processes, or dumps that it left."""

    report: Report
    snapshot: HangSnapshot | None = None
    dumped: Standing | None = None
    log: JobLog | None = None  # where nothing but logs was read

    @property
    def is_of_record(self) -> bool:
        return self.snapshot is None and self.dumped is None and self.log is None

    @property
    def has_verdict(self) -> bool:
        """That checks found nothing is none: some finding fits each state that is understood."""
        if self.is_of_record:  # checks that looked
            return any(each.outcome in (Outcome.FINDINGS, Outcome.CLEAN)
                       for each in self.report.results)  # fmt: skip
        return bool(self.report.findings)


def diagnose(
    pid: int | None = None, timeout_s: float = 10.0, watch_s: float = WATCH_S
) -> list[Diagnosis]:
    """Judge all jobs of this host, or the one of this process. Raises NothingToDiagnose."""
    processes = Processes()
    if pid is not None:
        _must_be_readable(processes, pid)
    snapshots = take_snapshots(pid, timeout_s, processes, watch_s)
    if not snapshots:
        raise NothingToDiagnose(_why_none(processes, pid))
    return [Diagnosis(judge(snapshot), snapshot) for snapshot in snapshots]


def diagnose_all(
    seen: list[Diagnosis] | None,
    logs: Sequence[Path],
    pid: int | None,
    timeout_s: float,
    watch_s: float,
) -> list[Diagnosis]:
    """What a job left, or the jobs of this host, each with its logs; or the logs alone."""
    if not logs:
        return seen or diagnose(pid, timeout_s, watch_s)
    from ddpdoctor.diagnose_log import judge_logs, with_log

    told = judge_logs(logs)
    alive = seen is None
    if seen is None:
        try:
            seen = diagnose(pid, timeout_s, watch_s)
        except NothingToDiagnose:
            if pid is not None:
                raise
            seen = []
    if len(seen) == 1:
        return [replace(seen[0], report=with_log(seen[0].report, told, alive=alive))]
    return [_of_logs(told), *seen]


def diagnosis_of_logs(paths: Sequence[Path]) -> Diagnosis:
    """What the logs of a job say alone. Raises NothingToDiagnose."""
    from ddpdoctor.diagnose_log import judge_logs

    return _of_logs(judge_logs(paths))


def _of_logs(told: LogVerdict) -> Diagnosis:
    from ddpdoctor.diagnose_log import must_say_something

    must_say_something(told)
    return Diagnosis(told.report(), log=told.log)


def judge_dumps(dumps: Dumps, name: str) -> Diagnosis:
    """Judge a job by dumps of torch's flight recorder."""
    scene = standing(dumps)
    results = tuple(run_check(check, scene) for check in dump_checks())
    return Diagnosis(Report("hang", name, results, notes=scene.dumps.problems), dumped=scene)


def diagnosis_of_run(report: Report) -> Diagnosis:
    """What the report on a recorded run says of its end."""
    why = _TELL_WHY + (_AT_START if _is_apart(report) else ())
    results = tuple(
        each for each in report.results if each.code.startswith("DD9") or each.code in why
    )
    return Diagnosis(replace(report, results=results, analysis=None))


def _is_apart(report: Report) -> bool:
    from ddpdoctor.lastlook import last_look  # numpy, by the record: only where there is one

    seen = last_look(report.analysis.run) if report.analysis is not None else None
    return seen is not None and explained(seen)


def judge(snapshot: HangSnapshot) -> Report:
    """All hang checks on one snapshot, as a report."""
    results = tuple(run_check(check, snapshot) for check in hang_checks())
    report = Report("hang", snapshot.job.name, results, notes=_notes(snapshot))
    return replace(report, notes=(*report.notes, *_why_no_other(snapshot, report.primary)))


def _why_no_other(snapshot: HangSnapshot, primary: str | None) -> tuple[str, ...]:
    against = [f"{why} ({code})" for code, why in ruled_out(snapshot) if code != primary]
    return (f"why it is nothing else: {'; '.join(against)}",) if primary and against else ()


def _notes(snapshot: HangSnapshot) -> tuple[str, ...]:
    notes = [
        f"{_called(rank.rank)} (pid {rank.pid}): {rank.refusal}"
        for rank in snapshot.ranks
        if rank.refusal is not None
    ]
    if snapshot.elsewhere:
        notes.append(
            f"{snapshot.elsewhere} of {snapshot.job.world_size} ranks are not on this host and "
            "were not looked at"
        )
    return tuple(notes)


def _called(rank: int | None) -> str:
    return "a rank" if rank is None else f"rank {rank}"


def _must_be_readable(processes: Processes, pid: int) -> None:
    stat = processes.stat(pid)
    if stat is None:
        raise NothingToDiagnose(f"there is no process {pid}")
    if stat.state == "Z":
        raise NothingToDiagnose(
            f"process {pid} has ended (it is a zombie): name its launcher {stat.parent} instead"
        )
    if processes.identity(pid) is None:
        raise NothingToDiagnose(
            f"process {pid} belongs to another user: run `sudo ddpdoctor diagnose --pid {pid}`"
        )


def _why_none(processes: Processes, pid: int | None) -> str:
    if pid is not None:
        return (
            f"process {pid} is neither a rank nor the launcher of one: it has no RANK in its "
            "environment, did not register, and is no torch.multiprocessing child"
        )
    hidden = sum(
        stat.name.startswith("python") and processes.identity(stat.pid) is None
        for stat in processes.all().values()
        if stat.state != "Z"
    )
    if hidden:
        return (
            f"no rank of a DDP job was found, but {hidden} Python processes of other users may not "
            "be read: run `sudo ddpdoctor diagnose`"
        )
    return (
        "no rank of a DDP job runs on this host: run `ddpdoctor diagnose` on a node of the job, in "
        "its container if it has one"
    )
