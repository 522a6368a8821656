"""`ddpdoctor diagnose` on files: dumps, logs, and archives of what was seen; and packing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddpdoctor.diagnose import Diagnosis, diagnosis_of_logs, judge, judge_dumps
from ddpdoctor.diagnose_log import LogVerdict, judge_log, with_log
from ddpdoctor.errors import NothingToDiagnose
from ddpdoctor.hang.archive import Evidence, is_archive, read_archive, write_archive
from ddpdoctor.hang.dumps import dump_files, dumps_in, read_dumps
from ddpdoctor.hang.logfiles import are_logs, log_files, logs_in
from ddpdoctor.hang.snapshot import HangSnapshot


def diagnose_left(paths: Sequence[Path]) -> list[Diagnosis]:
    """Judge what a job left, or what others have packed. Raises NothingToDiagnose."""
    packed = [path for path in paths if is_archive(path)]
    if packed and len(packed) == len(paths):
        return _diagnose_archives(packed)
    if packed:
        raise NothingToDiagnose(f"{packed[0]} is an archive: name archives, or dumps, not both")
    if are_logs(paths):
        return [diagnosis_of_logs(paths)]
    return [judge_dumps(read_dumps(paths), named(paths))]


def named(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths[:3]) + (", …" if len(paths) > 3 else "")


def _diagnose_archives(paths: Sequence[Path]) -> list[Diagnosis]:
    """Those of several hosts of a job go together."""
    read = [(path, read_archive(path)) for path in paths]
    snapshots = [snapshot for _, evidence in read for snapshot in evidence.snapshots]
    notes = tuple(
        f"{path.name}: taken on {evidence.manifest.host} at {evidence.manifest.taken}"
        for path, evidence in read
    )
    dumps = [each for _, evidence in read for each in evidence.dumps]
    diagnoses = [Diagnosis(judge(each), each) for each in together(snapshots)]
    if dumps:
        diagnoses.append(judge_dumps(dumps_in(dumps), named(paths)))
    diagnoses = _with_logs(diagnoses, [evidence for _, evidence in read], named(paths))
    if not diagnoses:
        raise NothingToDiagnose(f"{named(paths)}: nothing was packed")
    return [_noted(each, notes) for each in diagnoses]


def _with_logs(diagnoses: list[Diagnosis], read: Sequence[Evidence], name: str) -> list[Diagnosis]:
    logs = [each for evidence in read for each in evidence.logs]
    if not logs:
        return diagnoses
    told = judge_log(logs_in(logs), name)
    if len(diagnoses) != 1:
        return [Diagnosis(told.report(), log=told.log), *diagnoses]
    return [_told(diagnoses[0], told)]


def _told(diagnosis: Diagnosis, told: LogVerdict) -> Diagnosis:
    alive = diagnosis.snapshot is not None
    return replace(diagnosis, report=with_log(diagnosis.report, told, alive=alive))


def _noted(diagnosis: Diagnosis, notes: tuple[str, ...]) -> Diagnosis:
    report = replace(diagnosis.report, notes=(*diagnosis.report.notes, *notes))
    return replace(diagnosis, report=report)


def together(snapshots: Sequence[HangSnapshot]) -> list[HangSnapshot]:
    """Snapshots of one job that were taken on different hosts, as one."""
    found: list[HangSnapshot] = []
    for snapshot in snapshots:
        for index, other in enumerate(found):
            if _one_job(snapshot, other):
                found[index] = _joined(other, snapshot)
                break
        else:
            found.append(snapshot)
    return found


def _one_job(one: HangSnapshot, other: HangSnapshot) -> bool:
    mine, theirs = one.job, other.job
    if not mine.master or (mine.master, mine.run_id) != (theirs.master, theirs.run_id):
        return False
    ranks = {rank.rank for rank in one.ranks} & {rank.rank for rank in other.ranks}
    return mine.world_size == theirs.world_size and one.host != other.host and not ranks


def _joined(one: HangSnapshot, other: HangSnapshot) -> HangSnapshot:
    ranks = (*one.ranks, *other.ranks)
    return replace(
        one,
        host=f"{one.host}, {other.host}",
        ranks=tuple(sorted(ranks, key=lambda rank: (rank.rank is None, rank.rank or 0))),
        dead=one.dead + other.dead,
        ended=one.ended + other.ended,
        watched_s=min(one.watched_s, other.watched_s),
        memory_kills=one.memory_kills + other.memory_kills,
        launcher=None,
    )


def pack(
    folder: Path,
    host: str,
    diagnoses: Sequence[Diagnosis],
    left: Sequence[Path],
    logs: Sequence[Path],
) -> Path:
    """All that a verdict stands on, in a file that `diagnose` reads. Raises NothingToDiagnose."""
    snapshots = [each.snapshot for each in diagnoses if each.snapshot is not None]
    only_logs = bool(left) and are_logs(left)
    try:
        return write_archive(
            folder,
            host,
            snapshots,
            [] if only_logs or not left else dump_files(left),
            log_files([*logs, *(left if only_logs else ())]),
        )
    except OSError as error:
        raise NothingToDiagnose(
            f"{error.filename or folder}: the evidence cannot be packed ({error.strerror})"
        ) from error
