"""Evidence that is packed on one host and judged on another; and archives that are not ours."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.cgroups import MemoryKills
from ddpdoctor.checks import hang_checks, run_check
from ddpdoctor.diagnose import Diagnosis, judge
from ddpdoctor.diagnose_left import diagnose_left, pack, together
from ddpdoctor.errors import NothingToDiagnose
from ddpdoctor.hang import archive
from ddpdoctor.hang.archive import read_archive, write_archive
from ddpdoctor.hang.calls import CallSite
from ddpdoctor.hang.snapshot import DeadRank, HangSnapshot, PendingEntry
from ddpdoctor.report import to_json
from tests.dump_builders import call, calls_in, write
from tests.hang_builders import (
    NEXT_BATCH,
    at,
    in_backward,
    in_record,
    snapshot,
    user,
    worker,
)
from tests.launching import ROOT, ddpdoctor, finish

PENDING = PendingEntry("0", 8, "all_reduce", ((8,), (2, 3)), "scheduled", 12.5)
FULL = snapshot(
    in_backward(0, collectives=in_record(8), in_band=(PENDING,), calls=calls_in([call(1)])),
    at(1, *NEXT_BATCH, user(25, "for batch in loader:"), workers=(worker(user(70, "read()")),)),
    dead=(DeadRank(2, 77, 9, None, "ValueError: x", CallSite("/t.py", 3, "f")),),
    memory_kills=(MemoryKills("/slurm/job_7", 1),),
    ended=(3, None),
)


def test_what_is_read_is_what_was_packed(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "new" / "folder", "node 1/ä", [FULL])

    evidence = read_archive(path)

    assert evidence.snapshots == (FULL,)
    assert evidence.manifest.host == "node 1/ä"
    assert path.stat().st_mode & 0o777 == 0o600
    for check in hang_checks():
        assert run_check(check, evidence.snapshots[0]) == run_check(check, FULL)


def test_the_verdict_is_the_same_elsewhere(tmp_path: Path) -> None:
    here = Diagnosis(judge(FULL), FULL)

    (there,) = diagnose_left([pack(tmp_path, "node1", [here], [], [])])

    mine, theirs = json.loads(to_json(here.report)), json.loads(to_json(there.report))
    assert mine["results"] == theirs["results"]
    assert "taken on node1 at" in theirs["notes"][-1]


def test_dumps_and_logs_go_with_it(tmp_path: Path) -> None:
    waits, done = [call(1, done=True), call(2, at=12)], [call(1, done=True)]
    dumps = write(tmp_path / "dumps", {0: waits, 1: done}, g0=[0, 1])
    log = tmp_path / "job.log"
    log.write_text("password=hunter2\nsrun: error: node7: task 1: Killed\n")

    left = diagnose_left([dumps])
    path = pack(tmp_path, "node1", left, [dumps], [log])
    (there,) = diagnose_left([path])

    assert left[0].report.primary == "DD903"
    assert there.report.primary == "DD901"  # the log tells what came before
    assert b"hunter2" not in gzip.decompress(path.read_bytes())


def test_source_lines_are_packed_without_credentials(tmp_path: Path) -> None:
    secret = snapshot(in_backward(0), at(1, user(9, 'login(token="hunter2")')))

    path = write_archive(tmp_path, "node1", [secret])

    assert b"hunter2" not in gzip.decompress(path.read_bytes())


def on(host: str, *ranks: int, leaves: bool = False) -> HangSnapshot:
    at_end = [
        at(rank, user(50, "time.sleep(9)")) if leaves else in_backward(rank) for rank in ranks
    ]
    return replace(snapshot(*at_end, world_size=4), host=host)


def test_archives_of_several_hosts_are_one_job(tmp_path: Path) -> None:
    paths = [
        write_archive(tmp_path / "a", "node1", [on("node1", 0, 1)]),
        write_archive(tmp_path / "b", "node2", [on("node2", 2, 3, leaves=True)]),
    ]

    (alone,) = diagnose_left(paths[:1])
    (both,) = diagnose_left(paths)

    assert alone.report.primary is None
    assert both.report.primary == "DD902"
    ((_, finding),) = both.report.findings
    assert (finding.culprits, finding.victims) == ((2, 3), (0, 1))


def test_two_jobs_stay_two() -> None:
    other = replace(on("node2", 2, 3), job=replace(FULL.job, master="10.0.0.9:1"))

    assert len(together([on("node1", 0, 1), other])) == 2
    assert len(together([on("node1", 0, 1), on("node2", 0, 1)])) == 2  # cannot be one


def packed(folder: Path, **members: bytes) -> Path:
    path = folder / "evidence.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name.replace("__", "."))
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


MANIFEST = b'{"version": 1, "host": "h", "taken": "t"}'


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("ddpdoctor-hang__json", b"", "not as expected"),
        ("ddpdoctor-hang__json", b'{"version": 9, "host": "h", "taken": "t"}', "newer ddpdoctor"),
        ("ddpdoctor-hang__json", MANIFEST, "nothing was packed"),
        ("other", b"", "no archive of"),
    ],
)
def test_archives_that_say_nothing(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    with pytest.raises(NothingToDiagnose, match=reason):
        diagnose_left([packed(tmp_path, **{name: content})])


@pytest.mark.parametrize(
    "snapshot_json",
    [
        b"[" * 100_000,
        b'{"job": null}',
        b'{"job": {"master": "", "run_id": "", "agent_pid": 1, "world_size": 99999999999},'
        b' "host": "h", "ranks": []}',
        b'{"job": {"master": "", "run_id": "", "agent_pid": 1, "world_size": 2}, "host": "h",'
        b' "ranks": [{"rank": -7, "pid": 1}]}',
    ],
)
def test_snapshots_that_no_job_has(tmp_path: Path, snapshot_json: bytes) -> None:
    members = {"ddpdoctor-hang__json": MANIFEST, "snapshot-0__json": snapshot_json}

    with pytest.raises(NothingToDiagnose):
        diagnose_left([packed(tmp_path, **members)])


def test_an_archive_that_unpacks_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED", 1_000_000)

    with pytest.raises(NothingToDiagnose, match="unpacks to more"):
        read_archive(packed(tmp_path, bomb=bytes(2_000_000)))


@pytest.mark.parametrize("keep", [3, 20, 200])
def test_an_archive_that_breaks_off(tmp_path: Path, keep: int) -> None:
    whole = write_archive(tmp_path, "node1", [FULL]).read_bytes()
    (tmp_path / "part.tar.gz").write_bytes(whole[:keep])

    with pytest.raises(NothingToDiagnose, match="damaged"):
        read_archive(tmp_path / "part.tar.gz")


def test_links_and_paths_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("logs/0-job.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        for name, data in (("../../escaped.log", b"x"), ("ddpdoctor-hang.json", MANIFEST)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

    evidence = read_archive(path)

    assert (evidence.logs, evidence.dumps) == ((), ())
    assert not (tmp_path.parent / "escaped.log").exists()


def test_by_the_command_line(tmp_path: Path) -> None:
    path = write_archive(tmp_path, "node1", [FULL])

    done = finish(ddpdoctor("diagnose", str(path), "-v"), ROOT, seconds=30)
    again = finish(ddpdoctor("diagnose", str(path), "-o", str(tmp_path)), ROOT, seconds=30)

    assert done.status == 1
    assert "for batch in loader:" in done.out
    assert (again.status, again.out) == (2, "")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    dumps = write(tmp_path / "dumps", {0: [call(1)], 1: []}, g0=[0, 1])
    (tmp_path / "file").write_text("")

    done = finish(ddpdoctor("diagnose", str(dumps), "-o", str(tmp_path / "file" / "x")), ROOT)

    assert done.status == 2
    assert "cannot be packed" in done.err
