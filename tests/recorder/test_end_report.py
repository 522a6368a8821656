"""Rank 0 waits for the files of those that still write, and for no dead one."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.events import RunInfo
from ddpdoctor.recorder.end_report import all_have_ended
from ddpdoctor.recorder.writer import RankFile
from tests.builders import rank_info


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """The process of rank 1, which does not end by itself while this test runs."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def open_ranks(folder: Path, pid: int, host: str) -> RankFile:
    """Rank 0 has closed its file, and rank 1 of that process has not."""
    files = [
        RankFile(
            folder / f"rank{rank:05d}.ddt",
            RunInfo("r", 0, 2, "gloo"),
            rank_info(rank, 2, pid=pid, host=host),
        )
        for rank in range(2)
    ]
    files[0].close()
    return files[1]


def test_a_rank_that_was_killed_is_not_waited_for(
    tmp_path: Path, other: subprocess.Popen[bytes]
) -> None:
    file = open_ranks(tmp_path, other.pid, socket.gethostname())
    while_it_lives = all_have_ended(tmp_path)
    other.kill()
    other.wait()

    assert not while_it_lives
    assert all_have_ended(tmp_path)
    file.close()


def test_a_rank_of_another_host_is_waited_for_until_it_closes_its_file(
    tmp_path: Path, other: subprocess.Popen[bytes]
) -> None:
    other.kill()
    other.wait()  # its number says nothing about a process elsewhere
    file = open_ranks(tmp_path, other.pid, "elsewhere")

    assert not all_have_ended(tmp_path)
    file.close()
    assert all_have_ended(tmp_path)


ENDS = """
import os, signal, sys, threading
from pathlib import Path
from ddpdoctor.recorder import end_report

before = {"none": signal.SIG_DFL, "exits": lambda number, frame: sys.exit(7)}[sys.argv[1]]
signal.signal(signal.SIGTERM, before)
end_report.OTHERS_SECONDS = 0.5
threading.Timer(0.2, os.killpg, (0, signal.SIGTERM)).start()
end_report.print_end_report(Path(sys.argv[2]))
"""


@pytest.mark.parametrize(("handler", "status"), [("none", -signal.SIGTERM), ("exits", 7)])
def test_a_launcher_that_ends_all_ranks_meanwhile_gets_the_report(
    handler: str, status: int, tmp_path: Path
) -> None:
    """Then the process ends by the signal, as it would have; a handler of the script's acts."""
    command = [sys.executable, "-c", ENDS, handler, str(tmp_path / "no-such-run")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, start_new_session=True
    )

    assert done.returncode == status
    assert ("there is no such folder" in done.stderr) == (handler == "none")
