"""A rank that the kernel kills since the memory of its control group has run out."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ddpdoctor.cgroups import hierarchy_of
from ddpdoctor.hang.processes import Processes
from tests import launching
from tests.launching import PROGRAMS, ROOT

pytestmark = [pytest.mark.job, pytest.mark.long, pytest.mark.timeout(240)]

READY_SECONDS = 120
SPARE = 64 * 2**20  # bytes of memory that are left to the job
_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}


@pytest.fixture
def group() -> Iterator[tuple[int, Path]]:
    """A control group of its own for memory, and its version."""
    hierarchy = hierarchy_of("memory")
    if hierarchy is None:
        pytest.skip("no control group of the memory controller is mounted here")
    folder = hierarchy.root / f"ddpdoctor-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"control groups cannot be made here ({error.strerror})")
    try:
        if not os.access(folder / _LIMIT[hierarchy.version], os.W_OK):
            pytest.skip("the memory controller is not given on to new control groups here")
        yield hierarchy.version, folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Only possible once the last process in it is reaped."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "the job did not get there"
        time.sleep(0.05)


def test_a_rank_that_needed_more_memory_than_its_group_has(
    group: tuple[int, Path], tmp_path: Path
) -> None:
    version, folder = group
    command = launching.torchrun(PROGRAMS / "hang_out_of_memory.py", str(tmp_path), ranks=2)
    command.insert(command.index("--standalone"), "--monitor-interval=600")
    inside = ["sh", "-c", f'echo $$ > "{folder}/cgroup.procs" && exec "$@"', "sh", *command]
    with launching.started(inside, tmp_path) as process:
        wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
        used = int((folder / _USED[version]).read_text())
        (folder / _LIMIT[version]).write_text(str(used + SPARE))
        (tmp_path / "limited").touch()
        wait_until(lambda: _has_zombie(process.pid))
        done = launching.finish(
            launching.ddpdoctor("diagnose", "--json", "--pid", str(process.pid)), ROOT, seconds=30
        )

    report = json.loads(done.out)
    (finding,) = [each for result in report["results"] for each in result["findings"]]
    assert (report["primary"], finding["culprits"], finding["victims"]) == ("DD901", [1], [0])
    assert finding["confidence"] == "certain"
    assert "memory ran out" in finding["message"]
    assert "more memory" in finding["fix"]
    assert str(folder) in str(finding["evidence"])


def _has_zombie(launcher: int) -> bool:
    stats = Processes().all().values()
    return any(stat.parent == launcher and stat.state == "Z" for stat in stats)
