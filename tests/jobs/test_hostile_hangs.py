"""`ddpdoctor diagnose` where looking is hard, and where only a log or an archive is left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import launching
from tests.launching import PROGRAMS, ROOT, Finished

pytestmark = [pytest.mark.job, pytest.mark.timeout(240)]

READY_SECONDS = 120
NOBODY = 65534
OTHERS = 100  # Python processes that are no ranks


def diagnose(*arguments: str) -> Finished:
    return launching.finish(launching.ddpdoctor("diagnose", *arguments), ROOT, seconds=40)


def wait_for(folder: Path, ranks: int) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while len(list(folder.glob("ready-*"))) < ranks:
        assert time.monotonic() < deadline, "the job did not get there"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A hung job of three ranks, one of them 3,000 calls deep, among many Python processes."""
    folder = tmp_path_factory.mktemp("deep")
    command = launching.torchrun(PROGRAMS / "hang_deep.py", str(folder), ranks=3)
    idle = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
    with ExitStack() as stack:
        process = stack.enter_context(launching.started(command, folder))
        for _ in range(OTHERS):
            stack.enter_context(launching.started(idle, folder))
        wait_for(folder, 3)
        time.sleep(1)
        yield process


def only_finding(report: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    found = [(result["code"], each) for result in report["results"] for each in result["findings"]]
    assert len(found) == 1, found
    return found[0]


def test_a_deep_stack_among_many_processes_and_the_same_from_an_archive(
    deep: subprocess.Popen[str], tmp_path: Path
) -> None:
    here = diagnose("--pid", str(deep.pid), "--json", "-o", str(tmp_path))
    (packed,) = tmp_path.glob("*.tar.gz")
    there = diagnose(str(packed), "--json")

    code, finding = only_finding(json.loads(here.out))
    assert (here.status, code, finding["culprits"], finding["victims"]) == (1, "DD903", [0], [1, 2])
    assert finding["where"][0]["function"] == "descend"
    assert json.loads(there.out)["results"] == json.loads(here.out)["results"]


def _may_run_python(user: int) -> bool:
    """Also where root's own Python lies in a folder that is closed to others."""
    try:
        command = [sys.executable, "-c", "import click"]
        return subprocess.run(command, user=user, cwd="/", timeout=30, check=False).returncode == 0
    except PermissionError:
        return False


def test_another_user_is_told_what_to_do(deep: subprocess.Popen[str]) -> None:
    if not _may_run_python(NOBODY):
        pytest.skip("needs root, and a Python open to all")
    command = launching.ddpdoctor("diagnose", "--pid", str(deep.pid))

    done = subprocess.run(
        command, cwd="/", env=launching.environment(PYTHONPATH=str(ROOT)), user=NOBODY,
        group=NOBODY, extra_groups=[], capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert "sudo ddpdoctor diagnose" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_that_ends_while_it_is_looked_at(tmp_path: Path) -> None:
    command = launching.torchrun(PROGRAMS / "ends_in_a_moment.py", str(tmp_path), ranks=3)
    with launching.started(command, tmp_path) as process:
        wait_for(tmp_path, 3)
        looked = []
        while process.poll() is None and len(looked) < 10:
            looked.append(diagnose("--pid", str(process.pid), "--json"))

    assert looked
    for done in looked:
        assert done.status in (0, 2), done.out + done.err
        assert "Traceback" not in done.err


def log_of(folder: Path, end: str) -> Path:
    """What torchrun and its ranks wrote of a job in which rank 1 ends so."""
    command = launching.torchrun(PROGRAMS / "one_fails.py", end, ranks=3)
    place = command.index("--standalone")
    command[place:place] = ["--log-dir", str(folder / "logs"), "--redirects", "3"]
    done = launching.finish(command, folder)
    assert done.status != 0
    (folder / "torchrun.log").write_text(done.out + done.err)
    return folder / "torchrun.log"


@pytest.mark.long
@pytest.mark.parametrize("end", ["killed", "raises"])
def test_the_log_of_a_job_in_which_a_rank_failed(tmp_path: Path, end: str) -> None:
    log = log_of(tmp_path, end)

    by_launcher = diagnose(str(log), "--json")
    by_ranks = diagnose("--log", str(tmp_path / "logs"), "--json", str(log))

    for done in (by_launcher, by_ranks):
        code, finding = only_finding(json.loads(done.out))
        assert (code, finding["culprits"]) == ("DD901", [1]), done.out
    assert ("SIGKILL" if end == "killed" else "ValueError") in by_ranks.out
