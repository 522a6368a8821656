"""A run's folder, looked at while it changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.following import GONE_S, Course, Follower, course_unseen, first_report
from ddpdoctor.report import Report
from ddpdoctor.samples import sample_folder
from ddpdoctor.tracefile import load_run

RANKS = ("rank00000.ddt", "rank00001.ddt", "rank00002.ddt")


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """Three ranks whose record was not closed."""
    run = tmp_path / "run"
    shutil.copytree(sample_folder("hang"), run)
    return run


def newest(run: Path) -> float:
    return max(path.stat().st_mtime for path in run.glob("rank*.ddt"))


def written_again(run: Path, name: str) -> None:
    path = run / name
    at = path.stat().st_mtime + 10.0
    os.utime(path, (at, at))


def hangs(report: Report) -> list[str]:
    return [result.code for result, _ in report.findings if result.code.startswith("DD9")]


def without_stalls(run: Path) -> None:
    """As if the recorders had noted no stall yet."""
    for path in run.glob("*.facts.jsonl"):
        lines = [
            line
            for line in path.read_text().splitlines()
            if not line.startswith('{"fact": "stall"')
        ]
        path.write_text("\n".join(lines) + "\n")


def test_while_records_come_a_rank_that_is_not_there_yet_is_no_hang(hanging: Path) -> None:
    without_stalls(hanging)
    report = first_report(hanging)
    assert hangs(report)
    follower = Follower(report, lambda: newest(hanging) + 0.5)
    assert follower.course is Course.RUNNING
    assert hangs(follower.report) == []
    assert follower.look() is None
    for name in RANKS:
        written_again(hanging, name)
    moving = follower.look()
    assert moving is not None
    assert hangs(moving) == []
    (result,) = [result for result in moving.results if result.code == "DD913"]
    assert result.outcome is Outcome.SKIPPED


def test_where_each_rank_noted_that_nothing_moves_the_hang_is_on_top(hanging: Path) -> None:
    follower = Follower(first_report(hanging), lambda: newest(hanging) + 0.5)
    assert follower.course is Course.STILL
    assert follower.report.primary == "DD903"
    for name in RANKS:  # the recorders live, and say so each second
        written_again(hanging, name)
    assert follower.look() is None


def test_when_it_moves_again_the_hang_is_taken_back(hanging: Path) -> None:
    follower = Follower(first_report(hanging), lambda: newest(hanging) + 0.5)
    without_stalls(hanging)
    moving = follower.look()
    assert moving is not None
    assert hangs(moving) == []
    assert follower.course is Course.RUNNING


def test_ranks_that_are_gone_without_a_word_are_judged(hanging: Path) -> None:
    without_stalls(hanging)
    late = [0.5]
    follower = Follower(first_report(hanging), lambda: newest(hanging) + late[0])
    late[0] = GONE_S + 1
    judged = follower.look()
    assert judged is not None
    assert hangs(judged) == ["DD913"]
    assert follower.course is Course.STILL
    assert follower.look() is None


def test_a_run_that_has_ended_is_shown_as_it_is() -> None:
    report = first_report(sample_folder("healthy"))
    follower = Follower(report)
    assert follower.course is Course.ENDED
    assert follower.report is report


def test_what_a_run_says_of_itself() -> None:
    for sample, course in (("healthy", Course.ENDED), ("hang", Course.OPEN)):
        assert course_unseen(load_run(sample_folder(sample))) is course


def test_files_that_cannot_be_read_leave_what_is_shown(hanging: Path) -> None:
    follower = Follower(first_report(hanging))
    for path in hanging.glob("rank*.facts.jsonl"):
        written_again(hanging, path.name)
    for path in hanging.glob("rank*.ddt"):
        path.write_bytes(b"")
    assert follower.look() is None
