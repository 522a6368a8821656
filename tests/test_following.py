"""A run's folder, looked at while it changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.following import STILL_S, Course, Follower, first_report
from ddpdoctor.report import Report
from ddpdoctor.samples import sample_folder


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """Three ranks whose record was not closed."""
    run = tmp_path / "run"
    shutil.copytree(sample_folder("hang"), run)
    return run


def newest(run: Path) -> float:
    return max(path.stat().st_mtime for path in run.glob("rank*.ddt"))


def written_again(run: Path, seconds: float = 10.0) -> None:
    path = run / "rank00000.ddt"
    at = path.stat().st_mtime + seconds
    os.utime(path, (at, at))


def hangs(report: Report) -> list[str]:
    return [result.code for result, _ in report.findings if result.code.startswith("DD9")]


def test_while_records_come_a_rank_that_is_not_there_yet_is_no_hang(hanging: Path) -> None:
    report = first_report(hanging)
    assert hangs(report)
    follower = Follower.of(report)
    follower.now = lambda: newest(hanging) + 0.5
    assert follower.course is Course.RUNNING
    assert follower.look() is None
    written_again(hanging)
    moving = follower.look()
    assert moving is not None
    assert hangs(moving) == []
    (result,) = [result for result in moving.results if result.code == "DD913"]
    assert result.outcome is Outcome.SKIPPED
    assert follower.course is Course.RUNNING


def test_once_it_stands_still_the_hang_is_on_top_and_said_once(hanging: Path) -> None:
    follower = Follower.of(first_report(hanging))
    follower.now = lambda: newest(hanging) + STILL_S + 1
    judged = follower.look()
    assert judged is not None
    assert judged.primary == "DD913"
    assert follower.course is Course.STILL
    assert follower.look() is None
    written_again(hanging)
    follower.now = lambda: newest(hanging)
    assert follower.look() is not None
    assert follower.course is Course.RUNNING


def test_a_run_that_has_ended_needs_no_look() -> None:
    assert Follower.of(first_report(sample_folder("healthy"))).course is Course.ENDED


def test_files_that_cannot_be_read_leave_what_is_shown(hanging: Path) -> None:
    follower = Follower.of(first_report(hanging))
    for path in hanging.glob("rank*.ddt"):
        path.write_bytes(b"")
    assert follower.look() is None
