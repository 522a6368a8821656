"""`ddpdoctor diagnose`: look at the jobs of this host, judge each, report."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.checks import hang_checks, run_check
from ddpdoctor.errors import NothingToDiagnose
from ddpdoctor.hang.look import WATCH_S, take_snapshots
from ddpdoctor.hang.processes import Processes
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.report import Report


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on one job, and what was seen."""

    report: Report
    snapshot: HangSnapshot

    @property
    def has_verdict(self) -> bool:
        """That checks found nothing is none: some finding fits each state that is understood."""
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


def judge(snapshot: HangSnapshot) -> Report:
    """All hang checks on one snapshot, as a report."""
    results = tuple(run_check(check, snapshot) for check in hang_checks())
    return Report("hang", snapshot.job.name, results, notes=_notes(snapshot))


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
