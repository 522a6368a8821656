"""`ddpdoctor check` on real launches, good and bad, and what a wrong launch leads to later."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tests.hosts import ip, namespaces, needs_root
from tests.launching import (
    PROGRAMS,
    ROOT,
    ddpdoctor,
    ddpdoctor_run,
    environment,
    finish,
    finish_unrecorded,
    started,
    torchrun,
)

pytestmark = pytest.mark.job

SECONDS = 90  # on a busy machine torch alone takes ten to load


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def rank_environment(rank: int, world_size: int, port: int, **more: str) -> dict[str, str]:
    """As somebody sets it by hand."""
    return environment(
        RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), **more,
    )  # fmt: skip


@contextmanager
def ranks_started(
    environments: Sequence[dict[str, str]], folder: Path, *options: str
) -> Iterator[list[Popen[str]]]:
    """`ddpdoctor check --json` as each of these ranks."""
    with ExitStack() as stack:
        command = ddpdoctor("check", "--json", *options)
        yield [stack.enter_context(started(command, folder, env)) for env in environments]


def checked_by(
    environments: Sequence[dict[str, str]], folder: Path, *options: str
) -> tuple[list[int], dict[str, Any]]:
    """The exit statuses, and the report of the one rank that spoke."""
    with ranks_started(environments, folder, *options) as ranks:
        said = [rank.communicate(timeout=SECONDS) for rank in ranks]
    reports = [out for out, _ in said if out.strip()]
    assert len(reports) == 1, said
    return [rank.returncode for rank in ranks], json.loads(reports[0])


def found(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The findings at warning or above, by code; each code may have one."""
    return {
        result["code"]: finding
        for result in report["results"]
        for finding in result["findings"]
        if finding["severity"] != "info"
    }


def outcome(report: dict[str, Any], code: str) -> str:
    return next(str(each["outcome"]) for each in report["results"] if each["code"] == code)


def test_a_launch_under_torchrun_is_judged_once_for_all_ranks(tmp_path: Path) -> None:
    command = [*torchrun(Path("unused"))[:-1], "-m", "ddpdoctor", "check"]

    done = finish(command, tmp_path)

    assert done.status == 0, done.err
    assert done.out.count("2 of 2 ranks met at") == 1
    assert "DD404 environment-drift" in done.out.split("clean: ")[1]
    assert not (tmp_path / "failing_nodes.txt").exists()


@pytest.mark.long
def test_duplicate_ranks_set_by_hand(tmp_path: Path) -> None:
    """Three ranks, of which two call themselves 1; one of them has another variable, too."""
    port = free_port()
    environments = [rank_environment(rank, 3, port) for rank in (0, 1, 1)]

    statuses, report = checked_by(environments, tmp_path, "--timeout", "20")

    assert statuses == [1, 1, 1]
    assert report["subject"] == "launch"
    assert report["primary"] == "DD401"
    finding = found(report)["DD401"]
    assert finding["message"].startswith("2 processes claim rank 1: ")
    assert finding["victims"] == [2]
    assert list(found(report)) == ["DD401"]


@pytest.mark.long
def test_a_missing_rank_a_wrong_name_and_another_variable(tmp_path: Path) -> None:
    """The ranks that came are judged although one is missing."""
    port = free_port()
    environments = [
        rank_environment(0, 3, port),
        rank_environment(1, 3, port, GLOO_SOCKET_IFNAME="eth-no-such", NCCL_DEBUG="INFO"),
    ]
    began = time.monotonic()

    statuses, report = checked_by(environments, tmp_path, "--timeout", "8")

    assert time.monotonic() - began < SECONDS  # bounded; mostly loading torch
    assert statuses == [1, 1]
    findings = found(report)
    assert sorted(findings) == ["DD404", "DD407", "DD408"]
    assert findings["DD407"]["culprits"] == [2]
    assert "names no interface of this host" in findings["DD408"]["message"]
    assert findings["DD408"]["culprits"] == [1]
    assert (tmp_path / "failing_nodes.txt").read_text() == f"{socket.gethostname()}\n"


@pytest.mark.long
def test_a_port_that_somebody_else_holds(tmp_path: Path) -> None:
    with socket.socket() as foreign:
        foreign.bind(("0.0.0.0", 0))  # noqa: S104  where rank 0 would listen
        foreign.listen()
        port = foreign.getsockname()[1]

        statuses, report = checked_by([rank_environment(0, 2, port)], tmp_path, "--timeout", "3")

    assert statuses == [1]
    assert f"port {port} " in found(report)["DD408"]["message"]
    assert f"is held by pid {os.getpid()} " in found(report)["DD408"]["message"]


@pytest.mark.long
def test_nobody_at_the_rendezvous(tmp_path: Path) -> None:
    environments = [rank_environment(1, 2, free_port())]

    statuses, report = checked_by(environments, tmp_path, "--timeout", "3")

    assert statuses == [1]
    assert "nobody listens there" in found(report)["DD407"]["message"]


@needs_root
@pytest.mark.parametrize(("size", "status"), [("64m", 1), ("1g", 0)])
def test_a_small_dev_shm(size: str, status: int, tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", *ddpdoctor("check", "--json")]

    done = finish(command, tmp_path)

    assert done.status == status, done.out + done.err
    findings = found(json.loads(done.out))
    assert ("DD409" in findings) == bool(status)
    if status:
        assert "/dev/shm 64 MiB" in findings["DD409"]["message"]


@pytest.mark.long
@needs_root
def test_nodes_meet_without_a_launcher(tmp_path: Path) -> None:
    """Two network namespaces stand for two hosts; on the first torchrun waits for the second."""
    with namespaces(2) as names, ExitStack() as cleanup:
        ip("-n", names[0], *f"link add eth0 type veth peer name eth0 netns {names[1]}".split())
        for index, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.78.0.{index + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        nodes = [
            ["ip", "netns", "exec", name, *ddpdoctor("check", "--json", "--nnodes", "2",
             "--node-rank", str(index), "--rdzv-endpoint", "10.78.0.1:29500",
             "--timeout", "20")]
            for index, name in enumerate(names)
        ]  # fmt: skip
        env = environment(GLOO_SOCKET_IFNAME="eth0")

        alone = finish(nodes[1], tmp_path, env)
        jobs = [cleanup.enter_context(started(node, tmp_path, env)) for node in nodes]
        together = [job.communicate(timeout=SECONDS)[0] for job in jobs]

        waiting = [
            "ip", "netns", "exec", names[0], sys.executable, "-m", "torch.distributed.run",
            "--nnodes", "2", "--node-rank", "0", "--nproc-per-node", "1", "--master-addr",
            "10.78.0.1", "--master-port", "29501", str(PROGRAMS / "healthy.py"), str(tmp_path),
        ]  # fmt: skip
        launcher = cleanup.enter_context(started(waiting, tmp_path, env))
        diagnosis = diagnosed_when_it_waits(launcher.pid, "DD407")

    assert alone.status == 1
    assert "cannot reach 10.78.0.1:29500" in found(json.loads(alone.out))["DD407"]["message"]
    assert [job.returncode for job in jobs] == [0, 0], together
    assert together[1] == ""
    assert outcome(json.loads(together[0]), "DD407") == "clean"
    assert "of 2 nodes to meet at 10.78.0.1:29501" in found(diagnosis)["DD407"]["message"]


def diagnosed_when_it_waits(pid: int, code: str) -> dict[str, Any]:
    """What `diagnose` says of a process once it has come to where it waits."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        done = finish(ddpdoctor("diagnose", "--json", "--pid", str(pid)), ROOT)
        if done.out and code in found(json.loads(done.out)):
            return dict(json.loads(done.out))
        time.sleep(0.5)
    raise AssertionError(done.out + done.err)


def test_a_rank_that_waits_in_init_process_group_for_one_that_was_not_started(
    tmp_path: Path,
) -> None:
    env = rank_environment(0, 2, free_port())
    command = [sys.executable, str(PROGRAMS / "hang_joining.py"), str(tmp_path)]
    with started(command, tmp_path, env) as rank:
        diagnosis = diagnosed_when_it_waits(rank.pid, "DD407")

    assert diagnosis["primary"] == "DD407"
    finding = found(diagnosis)["DD407"]
    assert (finding["culprits"], finding["victims"]) == ([1], [0])
    assert "in init_process_group (hang_joining.py:10) for all 2 ranks" in finding["message"]


@pytest.mark.long
def test_a_recorded_launch_that_differs_is_said_while_it_trains(tmp_path: Path) -> None:
    done = finish(torchrun(PROGRAMS / "launch_differs.py"), tmp_path)

    assert done.status == 0, done.err
    said = [line for line in done.out.splitlines() if "was warned while training" in line]
    assert len(said) == 1
    assert said[0].startswith(
        "rank 0 was warned while training: ddpdoctor: this launch has a fault"
    )
    assert "DD404 environment-drift: the ranks differ in variable NCCL_DEBUG" in said[0]
    facts = (tmp_path / "ddpdoctor_runs").glob("*/*/rank00001.facts.jsonl")
    lines = [json.loads(line) for path in facts for line in path.read_text().splitlines()]
    (process,) = [line["data"] for line in lines if line["fact"] == "process"]
    assert process["limits"]["open_files"] > 0
    assert any(each.endswith("launch_differs.py") for each in process["command"])


@pytest.mark.long
@pytest.mark.parametrize("reduces", [False, True])
def test_training_without_ddp_is_said_unless_the_script_reduces(
    reduces: bool, tmp_path: Path
) -> None:
    command = ddpdoctor_run(PROGRAMS / "not_wrapped.py", *["reduces"] * reduces)

    done = finish_unrecorded(command, tmp_path)

    assert done.status == 0, done.err
    said = "DD406 not-wrapped: rank 0 of 2 trains without DistributedDataParallel"
    assert done.err.count(said) == (0 if reduces else 1)


@pytest.mark.long
def test_ranks_that_join_in_many_ways_leave_no_word_of_their_launch(tmp_path: Path) -> None:
    """Two trainings, of which each is a run; the groups before them left nothing."""
    program = PROGRAMS / "joins_in_many_ways.py"
    done = finish(ddpdoctor_run(program, str(tmp_path), str(free_port())), tmp_path)
    reported = finish(ddpdoctor("report", "--json", "--fail-on", "never"), tmp_path)

    assert done.status == 0, done.err
    assert "DD4" not in done.err.replace("DD404", "")
    (run,) = (tmp_path / "ddpdoctor_runs").iterdir()
    assert sorted(path.name for path in run.iterdir()) == ["attempt-0", "attempt-1"]
    report = json.loads(reported.out)
    assert report["subject"] == "run"
    assert not [code for code in found(report) if code.startswith("DD4")]
    for code in ("DD403", "DD404", "DD408", "DD409"):
        assert outcome(report, code) == "clean"


def test_a_launch_that_fails_is_judged_at_its_end_and_by_the_report(tmp_path: Path) -> None:
    done = finish(ddpdoctor_run(PROGRAMS / "joins_as_rank_0.py"), tmp_path)
    reported = finish(ddpdoctor("report", "--json"), tmp_path)
    listed = finish(ddpdoctor("runs", "--json"), tmp_path)

    assert done.status == 1
    assert "the script failed before any rank recorded a model" in done.err
    assert "DD401 duplicate-rank  error, certain" in done.err
    assert reported.status == 1
    report = json.loads(reported.out)
    assert (report["subject"], report["primary"]) == ("launch", "DD401")
    assert found(report)["DD401"]["culprits"] == [0]
    assert [each["state"] for each in json.loads(listed.out)] == ["no model recorded"]
