"""Run folders that are far away, or that go away while ranks record."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddpdoctor.errors import DdpDoctorError
from ddpdoctor.tracefile import read_rank
from tests.launching import ROOT, TRAIN, ddpdoctor, environment, finish, started, torchrun

pytestmark = pytest.mark.job

SERVER = ROOT / "tests" / "passing_folder.py"


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The temporary folder of the job's host."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def elsewhere(temporary: Path) -> dict[str, str]:
    """The environment of a job whose ranks record into the temporary folder of their host."""
    return environment(DDPDOCTOR_LOCAL="1", TMPDIR=str(temporary))


def wait_until(condition: Callable[[], bool], job) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert job.poll() is None, "the job ended early"
        assert time.monotonic() < deadline, "the ranks recorded no steps in time"
        time.sleep(0.2)


def pid_after_some_steps(path: Path) -> int:
    try:
        _, trace = read_rank(path)
    except DdpDoctorError:
        return 0
    return trace.info.pid if len(trace.steps) >= 30 else 0


@dataclass(frozen=True)
class FarFolder:
    """A mounted file system of a kind that is taken for one on the network."""

    path: Path
    behind: Path  # where its files really are
    server: int  # pid; while it is stopped, nothing that asks the file system comes back


@pytest.fixture
def far(tmp_path: Path) -> Iterator[FarFolder]:
    if os.getuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting needs root and FUSE")
    path, behind = tmp_path / "far", tmp_path / "behind"
    path.mkdir()
    behind.mkdir()
    with started([sys.executable, str(SERVER), str(behind), str(path)], tmp_path) as server:
        if server.stdout is None or server.stdout.readline() != "ready\n":
            pytest.fail(f"it is not mounted: {server.communicate(timeout=10)[1]}")
        try:
            yield FarFolder(path, behind, server.pid)
        finally:
            server.kill()  # whoever still waits for it is told that it is gone
            finish(["umount", "--lazy", str(path)], tmp_path)


def on(far: FarFolder, temporary: Path) -> dict[str, str]:
    return environment(DDPDOCTOR_DIR=str(far.path / "runs"), TMPDIR=str(temporary))


@pytest.mark.long
def test_the_record_of_a_far_folder_is_made_locally_and_brought_there_at_the_end(
    far: FarFolder, temporary: Path, tmp_path: Path
) -> None:
    done = finish(torchrun(TRAIN, "--wrap", "--fault", "forward"), tmp_path, on(far, temporary))

    assert done.status == 0, done.err
    assert "DD101 late-rank" in done.err  # rank 0's short report, on both ranks
    names = sorted(path.name for path in far.behind.glob("runs/*/attempt-0/*"))
    assert names == [f"rank0000{n}.{kind}" for n in range(2) for kind in ("ddt", "facts.jsonl")]
    assert not list(temporary.glob("ddpdoctor-record-*"))


@pytest.mark.long
def test_a_far_folder_that_answers_no_more_holds_up_no_step(
    far: FarFolder, temporary: Path, tmp_path: Path
) -> None:
    """At the end each rank waits for it a bounded time and says where the record is."""
    command = torchrun(TRAIN, "--wrap", "--steps", "400", "--fault", "between", "--late-ms", "5")
    records = lambda: sorted(temporary.glob("ddpdoctor-record-*/*.ddt"))
    with started(command, tmp_path, on(far, temporary)) as job:
        wait_until(lambda: len(records()) == 2 and all(map(pid_after_some_steps, records())), job)
        os.kill(far.server, signal.SIGSTOP)
        _, err = job.communicate(timeout=90)

    assert job.returncode == 0, err
    traces = [read_rank(path)[1] for path in records()]
    assert [len(trace.steps) for trace in traces] == [400, 400]
    for path in records():
        assert err.count(f"it is kept in {path.parent} on ") == 1
    assert "Traceback" not in err


@pytest.mark.long
def test_of_killed_ranks_the_report_says_where_their_records_are(
    temporary: Path, tmp_path: Path
) -> None:
    command = torchrun(TRAIN, "--wrap", "--steps", "100000")
    records = lambda: sorted(temporary.glob("ddpdoctor-record-*/*.ddt"))
    with started(command, tmp_path, elsewhere(temporary)) as job:
        wait_until(lambda: len(records()) == 2 and all(map(pid_after_some_steps, records())), job)
        pids = [pid_after_some_steps(path) for path in records()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        job.communicate(timeout=60)
    (attempt,) = tmp_path.glob("ddpdoctor_runs/*/attempt-0")
    report = ddpdoctor("report", "--json", "--fail-on", "never")

    unread = finish(report, tmp_path)
    assert unread.status == 2
    told = " ".join(unread.err.split())
    assert all(str(path) in told for path in records())

    for path in temporary.glob("ddpdoctor-record-*/rank00001.*"):
        shutil.copy(path, attempt)
    one = json.loads(finish(report, tmp_path).out)
    (problem,) = [note for note in one["notes"] if "no file of rank 0" in note]
    assert str(next(path for path in records() if path.name == "rank00000.ddt")) in problem

    for path in temporary.glob("ddpdoctor-record-*/rank00000.*"):
        shutil.copy(path, attempt)
    both = json.loads(finish(report, tmp_path).out)
    assert both["time"]["steps"]["counted"] >= 20


@pytest.mark.long
def test_a_run_folder_that_is_deleted_meanwhile_harms_no_training(tmp_path: Path) -> None:
    command = torchrun(TRAIN, "--wrap", "--steps", "400", "--fault", "between", "--late-ms", "5")
    records = lambda: sorted(tmp_path.glob("ddpdoctor_runs/*/attempt-0/*.ddt"))
    with started(command, tmp_path) as job:
        wait_until(lambda: len(records()) == 2 and all(map(pid_after_some_steps, records())), job)
        shutil.rmtree(tmp_path / "ddpdoctor_runs")
        _, err = job.communicate(timeout=90)

    assert job.returncode == 0, err
    assert "Traceback" not in err
