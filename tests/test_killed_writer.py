"""A writer that is killed at any moment: every committed record is read, none is torn."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from ddpdoctor.events import Kind, Phase, RunInfo
from ddpdoctor.recorder.writer import RankFile
from ddpdoctor.tracefile import read_rank
from tests.builders import rank_info

KILLS = 200
BUDGET_BYTES = 2048 * 64  # small, so that the detail is thinned out now and then


def write_until_killed(path: Path, progress: mmap.mmap) -> None:
    """Adds records whose fields follow from their step, and tells the last one committed."""
    file = RankFile(path, RunInfo("killed", 0, 1, "gloo"), rank_info(0, 1), BUDGET_BYTES)
    for step in range(10**9):
        serial = file.add(
            Kind.SPAN, Phase.FORWARD, 0, 0, step, step, 0, 0, -1, 0, -1, 100 + step, 0, 0, 0
        )
        file.finish(serial, 200 + step)
        file.add_step((step, 1, 1, 1, 1, 1, 1, step + 1))
        file.flush()
        progress[:8] = struct.pack("<q", step)  # at once: `pack_into` zeroes it first


@pytest.fixture
def progress() -> mmap.mmap:
    return mmap.mmap(-1, 8)


def test_every_committed_record_survives_sigkill(tmp_path: Path, progress: mmap.mmap) -> None:
    moments = random.Random(0)
    for kill in range(KILLS):
        path = tmp_path / f"rank{kill:05d}.ddt"
        struct.pack_into("<q", progress, 0, -1)
        child = os.fork()
        if child == 0:
            try:
                write_until_killed(path, progress)
            finally:
                os._exit(1)
        wait_for_first(progress)
        time.sleep(moments.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        check(path, last=struct.unpack_from("<q", progress)[0])
        path.unlink()


def wait_for_first(progress: mmap.mmap) -> None:
    deadline = time.monotonic() + 10
    while struct.unpack_from("<q", progress)[0] < 0:
        assert time.monotonic() < deadline, "the writer wrote nothing"
        time.sleep(0.0005)


def check(path: Path, last: int) -> None:
    _, trace = read_rank(path)
    detail = trace.detail
    assert trace.notes == ()
    assert (detail["begin_ns"] == 100 + detail["step"]).all()
    ended = detail[detail["end_ns"] > 0]
    assert (ended["end_ns"] == 200 + ended["step"]).all()
    assert np.isin(np.arange(max(0, last - 1000), last + 1), detail["step"]).all()
    assert trace.steps["input_us"].sum() in (last + 1, last + 2)
