"""What is found of ranks that are gone: error files of torchrun, kills for memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.cgroups import MemoryKills
from ddpdoctor.hang.aftermath import memory_kills, with_last_words
from ddpdoctor.hang.jobs import JobMembers, Member
from ddpdoctor.hang.processes import Processes
from ddpdoctor.hang.snapshot import DeadRank, Job
from tests.hang.fake_proc import FakeProc
from tests.hang_builders import in_backward, only_finding, snapshot


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def job_of(proc: FakeProc, folder: Path, dead: DeadRank) -> JobMembers:
    """Ranks 4 to 7 of eight, of which one is gone; torchrun gave each a folder by local rank."""
    members = []
    for rank in range(4, 8):
        if rank != dead.rank:
            error = {"TORCHELASTIC_ERROR_FILE": str(folder / str(rank - 4) / "error.json")}
            proc.add(100 + rank, 10, env=error | {
                "RANK": str(rank), "LOCAL_RANK": str(rank - 4), "LOCAL_WORLD_SIZE": "4",
            })  # fmt: skip
            members.append(Member(100 + rank, rank, 10))
    return JobMembers(Job("10.0.0.1:29500", "run", 10, 8), tuple(members), (dead,))


def write_error(folder: Path, local: int, content: str) -> None:
    (folder / str(local)).mkdir(parents=True)
    (folder / str(local) / "error.json").write_text(content)


SAID = {
    "message": "torch.OutOfMemoryError: CUDA out of memory. token=hunter2",
    "extraInfo": {"py_callstack": '  File "/home/user/train.py", line 7, in step\n    x\n'},
}


def test_a_dead_ranks_error_file_lies_beside_those_of_the_living(
    proc: FakeProc, tmp_path: Path
) -> None:
    write_error(tmp_path / "attempt_0", 2, json.dumps({"message": SAID}))
    job = job_of(proc, tmp_path / "attempt_0", DeadRank(6))

    (dead,) = with_last_words(job, Processes(proc.root))

    assert dead.said == "OutOfMemoryError: CUDA out of memory. token=(masked)"
    code, finding = only_finding(snapshot(in_backward(5), dead=(replace(dead, rank=1),)))
    assert code == "DD901"
    assert "ended with OutOfMemoryError" in finding.message
    assert finding.where[0].line == 7


@pytest.mark.parametrize("content", ["", "{}", "[1]", "null", '{"message": {}}', "{" * 100_000])
def test_an_error_file_that_says_nothing(proc: FakeProc, tmp_path: Path, content: str) -> None:
    write_error(tmp_path / "attempt_0", 2, content)
    job = job_of(proc, tmp_path / "attempt_0", DeadRank(6))

    assert with_last_words(job, Processes(proc.root)) == (DeadRank(6),)


def test_no_other_file_is_read_however_the_environment_names_it(
    proc: FakeProc, tmp_path: Path
) -> None:
    secret = tmp_path / "2"
    secret.mkdir()
    (secret / "shadow").write_text(json.dumps({"message": "root"}))
    env = {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "0" / "shadow"), "LOCAL_RANK": "0"}
    proc.add(104, 10, env=env | {"RANK": "4", "LOCAL_WORLD_SIZE": "4"})
    members = (Member(104, 4, 10),)
    job = JobMembers(Job("", "", 10, 8), members, (DeadRank(6),))

    assert with_last_words(job, Processes(proc.root)) == (DeadRank(6),)


def in_group(proc: FakeProc, pid: int, group: Path, events: str, version: int = 2) -> None:
    group.mkdir(parents=True)
    (group / ("memory.events" if version == 2 else "memory.oom_control")).write_text(events)
    folder = proc.root / str(pid)
    place = group.relative_to(group.parents[1])
    of = f"0::/{place}\n" if version == 2 else f"9:memory:/{place}\n"
    kind = "cgroup2 none rw" if version == 2 else "cgroup none rw,memory"
    (folder / "cgroup").write_text(of)
    (folder / "mountinfo").write_text(f"1 2 0:1 / {group.parents[1]} rw - {kind}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_kills_for_memory_are_counted_in_the_control_group(
    proc: FakeProc, tmp_path: Path, version: int
) -> None:
    proc.add(104, 10)
    group = tmp_path / "cg" / "slurm" / "job_7"
    in_group(proc, 104, group, "oom 3\noom_kill 2\n", version)

    kills = memory_kills([104, 104], Processes(proc.root))

    assert kills == (MemoryKills(str(group), 2),)


def test_a_group_without_kills_or_that_cannot_be_read(proc: FakeProc, tmp_path: Path) -> None:
    proc.add(104, 10)
    proc.add(105, 10)
    in_group(proc, 104, tmp_path / "cg" / "a" / "b", "oom 3\noom_kill 0\n")
    (proc.root / "105" / "cgroup").write_bytes(b"\xff\x00:::")

    assert memory_kills([104, 105, 99_999], Processes(proc.root)) == ()


def test_a_rank_that_vanished_beside_kills_for_memory_needs_memory() -> None:
    seen = snapshot(
        in_backward(0), dead=(DeadRank(1),), memory_kills=(MemoryKills("/slurm/job_7", 1),)
    )

    code, finding = only_finding(seen)

    assert code == "DD901"
    assert "more memory" in finding.fix
    assert any("/slurm/job_7" in each.what for each in finding.evidence)
    assert "more memory" not in only_finding(snapshot(in_backward(0), dead=(DeadRank(1),)))[1].fix
