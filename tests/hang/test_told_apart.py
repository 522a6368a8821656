"""Ranks that stand in one line, told apart by what they told torch there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpdoctor.diagnose import judge
from ddpdoctor.findings import Confidence
from ddpdoctor.hang.jobs import find_jobs
from ddpdoctor.hang.processes import Processes
from ddpdoctor.hang.pyspy import parse
from ddpdoctor.hang.ruledout import ruled_out
from ddpdoctor.hang.snapshot import DeadRank, Job, RankProcess
from ddpdoctor.stackframes import Frame
from tests.hang.fake_proc import FakeProc
from tests.hang_builders import (
    ALL_REDUCE,
    BACKWARD,
    TORCH,
    at,
    codes,
    in_backward,
    only_finding,
    snapshot,
    torch,
    user,
)

WRAPPER = torch("distributed/c10d_logger.py", "wrapper")


def calls(function: str) -> tuple[Frame, ...]:
    return (torch("distributed/distributed_c10d.py", function), WRAPPER)


def joins(number: int, **arguments: int) -> RankProcess:
    told = tuple(sorted(arguments.items()))
    return at(number, *calls("init_process_group"), user(5, "init_process_group()"), arguments=told)


def in_line(number: int, function: str, **arguments: int) -> RankProcess:
    told = tuple(sorted(arguments.items()))
    return at(number, *calls(function), user(9, f"dist.{function}(x)"), arguments=told)


def test_whole_numbers_of_torchs_functions_are_read_and_nothing_else() -> None:
    def frame(file: str, **local: str) -> dict[str, object]:
        shown = [{"name": name, "repr": value} for name, value in local.items()]
        return {"filename": file, "line": 1, "name": "f", "locals": shown}

    threads = [
        {"os_thread_id": 9, "frames": [frame(f"{TORCH}/distributed/x.py", dst="3")]},
        {
            "os_thread_id": 5,
            "frames": [
                frame(f"{TORCH}/distributed/a.py", src="1", rank="-1", name="secret", tag="0"),
                frame(f"{TORCH}/distributed/b.py", src="2", rank="0", world_size="99999999999"),
                frame("/home/user/train.py", dst="7"),
            ],
        },
    ]

    assert parse(5, json.dumps(threads).encode()).arguments == (("rank", 0), ("src", 1))


def test_both_send() -> None:
    code, finding = only_finding(snapshot(in_line(0, "send", dst=1), in_line(1, "send", dst=0)))

    assert (code, finding.culprits, finding.victims) == ("DD904", (), (0, 1))
    assert "batch_isend_irecv" in finding.fix
    assert "rank 1 send to rank 0" in finding.message


def test_a_broadcast_from_different_ranks() -> None:
    seen = snapshot(in_line(0, "broadcast", src=1), in_line(1, "broadcast", src=0))

    code, finding = only_finding(seen)

    assert code == "DD904"
    assert "same order" in finding.fix


@pytest.mark.parametrize("told", [{"src": 0}, {}])
def test_one_broadcast_is_one_call(told: dict[str, int]) -> None:
    seen = snapshot(*(in_line(rank, "broadcast", **told) for rank in (0, 1)))

    assert codes(seen) == ["DD908"]


def test_two_ranks_that_join_as_one() -> None:
    code, finding = only_finding(snapshot(joins(0, rank=0), joins(1, rank=0)))

    assert (code, finding.culprits, finding.victims) == ("DD401", (0,), (1,))
    assert "pid 1000 on node1, pid 1001 on node1" in finding.message


def test_a_world_that_is_larger_than_the_launchers() -> None:
    seen = snapshot(joins(0, rank=0, world_size=3), joins(1, rank=1, world_size=3), world_size=2)

    code, finding = only_finding(seen)

    assert (code, finding.culprits) == ("DD407", (2,))
    assert "all 3 ranks" in finding.message
    assert "WORLD_SIZE" in finding.fix


def test_ranks_that_look_for_each_other_at_different_places() -> None:
    job = Job("a:1", "", 999, 2, ((0, "a:1"), (1, "a:2")))
    seen = snapshot(joins(0), joins(1))
    seen = type(seen)(job, "node1", seen.ranks, watched_s=1.2)

    code, finding = only_finding(seen)

    assert (code, finding.culprits, finding.confidence) == ("DD407", (1,), Confidence.CERTAIN)
    assert "rank 0 at a:1; rank 1 at a:2" in finding.message


def test_a_group_that_only_some_make() -> None:
    makes = [
        at(
            rank, *calls("_store_based_barrier"), *calls("new_group"), user(9, "new_group([0])"),
            arguments=(("rank", 0), ("world_size", 2)),  # within that group
        )
        for rank in (0, 1, 2)
    ]  # fmt: skip

    code, finding = only_finding(snapshot(*makes))

    assert (code, finding.culprits) == ("DD911", ())
    assert "new_group on all ranks" in finding.fix


def test_ranks_whose_first_one_could_not_listen() -> None:
    seen = snapshot(joins(1), dead=(DeadRank(0, 12, exit_status=1),))

    code, finding = only_finding(seen)

    assert (code, finding.culprits) == ("DD901", (0,))
    assert "port" in finding.fix


def test_where_the_survivors_train_the_port_is_not_the_advice() -> None:
    seen = snapshot(in_backward(1), dead=(DeadRank(0, 12, exit_status=1),))

    assert "port" not in only_finding(seen)[1].fix


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def by_hand(proc: FakeProc, pid: int, rank: int, port: int = 1, **facts: object) -> None:
    env = {
        "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": str(port),
    }  # fmt: skip
    proc.add(pid, 10, env=env, **facts)  # type: ignore[arg-type]


def test_parts_of_one_job_with_different_ports_are_one_job(proc: FakeProc) -> None:
    by_hand(proc, 100, 0, 29500)
    by_hand(proc, 101, 1, 29501)

    (job,) = find_jobs(Processes(proc.root))

    assert job.job.masters == ((0, "a:29500"), (1, "a:29501"))
    assert [member.rank for member in job.members] == [0, 1]


def test_whole_jobs_beside_each_other_stay_two(proc: FakeProc) -> None:
    for index, port in enumerate((29500, 29501)):
        by_hand(proc, 100 + 2 * index, 0, port)
        by_hand(proc, 101 + 2 * index, 1, port)

    assert [job.job.masters for job in find_jobs(Processes(proc.root))] == [(), ()]


def test_a_rank_by_hand_that_failed_at_once(proc: FakeProc) -> None:
    by_hand(proc, 101, 1)
    proc.add(100, 10, state="Z", exit_code=256, start=1101)

    (job,) = find_jobs(Processes(proc.root))

    assert job.dead == (DeadRank(0, 100, exit_status=1),)


@pytest.mark.parametrize(("exit_code", "start"), [(0, 1101), (256, 900_000)])
def test_other_children_of_a_shell_are_no_ranks(proc: FakeProc, exit_code: int, start: int) -> None:
    by_hand(proc, 101, 1)
    proc.add(100, 10, state="Z", exit_code=exit_code, start=start)

    (job,) = find_jobs(Processes(proc.root))

    assert job.dead == ()


def doing(function: str, *inner: Frame, text: str = "x = work()") -> str:
    missing = at(0, *inner, user(60, text, function), user(25, "run()"))
    others = [at(rank, *ALL_REDUCE, user(30, "dist.all_reduce(x)")) for rank in (1, 2)]
    code, finding = only_finding(snapshot(missing, *others))
    assert (code, finding.culprits) == ("DD903", (0,))
    return finding.fix


LIBRARY = "/usr/lib/python3.11/site-packages"


def library(file: str, function: str = "f") -> Frame:
    return torch(f"../{file}", function)


@pytest.mark.parametrize(
    ("function", "inner", "word"),
    [
        ("evaluate", (), "evaluating"),
        ("save_checkpoint", (), "saving"),
        ("tokenize_all", (), "tokenising"),
        ("setup", (torch("_dynamo/symbolic_convert.py", "run"),), "compiling"),
        ("setup", (library("wandb/sdk/wandb_init.py"),), "logging service"),
        ("setup", (library("huggingface_hub/file_download.py"),), "downloading"),
        ("preprocess", (), "preparing data"),
    ],
)
def test_what_a_missing_rank_is_at_decides_the_advice(
    function: str, inner: tuple[Frame, ...], word: str
) -> None:
    assert f"It is {word}" in doing(function, *inner) or word in doing(function, *inner)


def test_a_name_that_says_nothing() -> None:
    assert "It is " not in doing("step")


def test_victims_in_backward_are_not_asked_what_they_are_at() -> None:
    missing = at(0, user(60, "time.sleep(9)", "step"), user(25, "run()"))
    waits = at(1, *BACKWARD, user(70, "loss.backward()", "evaluate"), user(25, "run()"))

    _, finding = only_finding(snapshot(missing, waits))

    assert "evaluating" not in finding.fix


def test_why_it_is_nothing_else_is_said() -> None:
    seen = snapshot(in_backward(0), at(1, user(60, "time.sleep(9)", "save"), user(25, "run()")))

    (note,) = [note for note in judge(seen).notes if note.startswith("why it is nothing else")]

    assert "every rank lives (DD901)" in note
    assert "nothing moved within 1.2 s (DD906)" in note
    assert "DD903" not in note


def test_what_was_not_seen_is_not_ruled_out() -> None:
    """Half of the ranks are on another host, and no stack may be read."""
    seen = snapshot(at(0, threads=(), refusal="no"), world_size=2)

    assert [code for code, _ in ruled_out(seen)] == ["DD910"]
