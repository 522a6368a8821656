"""Rank 0's short report when the training ends, made by a child process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ddpdoctor.errors import BadTraceFile
from ddpdoctor.events import RankInfo
from ddpdoctor.tracefile import read_header

REPORT_SECONDS: Final = 15.0
OTHERS_SECONDS: Final = 5.0  # how long the other ranks get to close their files


def print_end_report(folder: Path) -> None:
    """Write the short report to standard error; without it in time, where the record lies.

    A launcher that ends all ranks since one has failed sends SIGTERM just then, to this process and
    its children, and SIGKILL half a minute later: the report is written before the former acts.
    """
    with _sigterm_put_off():
        _wait_for_others(folder)
        _print(folder)


def _print(folder: Path) -> None:
    command = [sys.executable, "-m", "ddpdoctor", "report", str(folder), "--short"]
    try:
        child = subprocess.run(
            command, timeout=REPORT_SECONDS, check=False, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        text = child.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired:
        text = f"ddpdoctor: recorded in {folder}; see `ddpdoctor report {folder}`\n"
    sys.stderr.write(text)
    sys.stderr.flush()


@contextmanager
def _sigterm_put_off() -> Iterator[None]:
    """What it does by default is done afterwards; a handler of the script's is left alone."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if came:
            signal.raise_signal(signal.SIGTERM)


def _wait_for_others(folder: Path) -> None:
    deadline = time.monotonic() + OTHERS_SECONDS
    while time.monotonic() < deadline and not all_have_ended(folder):
        time.sleep(0.05)


def all_have_ended(folder: Path) -> bool:
    """Whether no rank will write any more: each has closed its file, or is dead on this host."""
    try:
        headers = [read_header(path) for path in folder.glob("rank*.ddt")]
    except (BadTraceFile, OSError):
        return False
    return (
        bool(headers)
        and len(headers) == headers[0].run.world_size
        and all(header.closed or _is_dead(header.rank) for header in headers)
    )


def _is_dead(rank: RankInfo) -> bool:
    """One that was killed closes nothing; a zombie is one whose launcher has not yet looked."""
    if rank.host != socket.gethostname():
        return False
    try:
        stat = Path(f"/proc/{rank.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return stat.rpartition(") ")[2][:1] in {"Z", "X"}
