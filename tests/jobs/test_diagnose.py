"""`ddpdoctor diagnose` on real ranks: each kind of hang, and jobs that do not hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.hang.processes import Processes
from tests import launching
from tests.launching import PROGRAMS, ROOT, Finished

pytestmark = [pytest.mark.job, pytest.mark.timeout(240)]

READY_SECONDS = 120  # importing torch, and coming to stand still, on a loaded machine
SETTLE_SECONDS = 0.5  # a hung job does nothing for that long; a loaded machine takes its time
NO_MONITOR = "--monitor-interval=600"  # torchrun must not end the job when a rank dies


@dataclass(frozen=True)
class Job:
    """A running job: its launcher, and the folder in which its ranks leave marks."""

    launcher: int
    folder: Path

    def rank(self, number: int) -> int:
        """Pid of a rank that torchrun started."""
        processes = Processes()
        for pid, stat in processes.all().items():
            identity = processes.identity(pid) or {}
            if stat.parent == self.launcher and identity.get("RANK") == str(number):
                return pid
        raise LookupError(number)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not holds():
            assert time.monotonic() < deadline, "the job did not get there"
            time.sleep(0.05)


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts programs, each with its ranks; all of them are killed at the end."""
    with ExitStack() as stack:

        def begin(
            program: str,
            ranks: int,
            *,
            spawned: bool = False,
            recorded: bool = False,
            hangs: bool = True,
        ) -> Job:
            folder = tmp_path / f"{program}-{time.monotonic_ns()}"
            folder.mkdir()
            path = PROGRAMS / f"{program}.py"
            command = launching.torchrun(path, str(folder), ranks=ranks)
            command.insert(command.index("--standalone"), NO_MONITOR)
            if recorded:
                command = launching.ddpdoctor_run(path, str(folder), ranks=ranks)
            elif spawned:
                command = [sys.executable, str(path), str(folder)]
            env = launching.environment(PYTHONPATH=str(ROOT), DDPDOCTOR_DIR=str(folder / "runs"))
            process = stack.enter_context(launching.started(command, folder, env))
            job = Job(_launcher_of(process, recorded=recorded), folder)
            job.wait_until(lambda: len(list(folder.glob("ready-*"))) == ranks)
            if hangs:
                job.wait_until(lambda: _stands_still(job.launcher))
            else:
                time.sleep(SETTLE_SECONDS)
            return job

        yield begin


def _stands_still(launcher: int) -> bool:
    processes = Processes()

    def seen() -> list[object]:
        children = [s for s in processes.all().values() if s.parent == launcher]
        return [(s.pid, s.state == "Z", processes.counters(s.pid)) for s in children]

    before = seen()
    time.sleep(SETTLE_SECONDS)
    return seen() == before


def _launcher_of(process: subprocess.Popen[str], *, recorded: bool) -> int:
    """torchrun's pid; `ddpdoctor run` starts it as its child."""
    if not recorded:
        return process.pid
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        for stat in Processes().all().values():
            if stat.parent == process.pid:
                return stat.pid
        time.sleep(0.05)
    raise LookupError("no launcher")


def diagnose(*arguments: str) -> Finished:
    return launching.finish(launching.ddpdoctor("diagnose", *arguments), ROOT, seconds=30)


def report_on(job: Job, status: int) -> dict[str, Any]:
    done = diagnose("--pid", str(job.launcher), "--json")
    assert done.status == status, done.out + done.err
    report: dict[str, Any] = json.loads(done.out)
    return report


def only_finding(report: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    found = [(result["code"], each) for result in report["results"] for each in result["findings"]]
    assert len(found) == 1, found
    return found[0]


def line_of(program: str, text: str) -> int:
    lines = (PROGRAMS / f"{program}.py").read_text().splitlines()
    return 1 + next(index for index, line in enumerate(lines) if text in line)


def test_a_rank_that_left_the_loop_early(start: Start) -> None:
    job = start("hang_early_leave", 3)

    code, finding = only_finding(report_on(job, 1))

    assert code == "DD902"
    assert (finding["culprits"], finding["victims"]) == ([1], [0, 2])
    assert finding["confidence"] == "likely"
    assert finding["where"][0]["line"] == line_of("hang_early_leave", "dist.barrier()")


@pytest.mark.long
def test_the_records_of_recorded_ranks_make_it_certain(start: Start) -> None:
    job = start("hang_early_leave", 3, recorded=True)

    code, finding = only_finding(report_on(job, 1))

    assert (code, finding["culprits"], finding["confidence"]) == ("DD902", [1], "certain")
    said = " ".join(f"{each['what']} {each['value']}" for each in finding["evidence"])
    assert "rank 1, its record in number 8 (barrier)" in said
    assert "rank 0, its record in number 8 (all_reduce)" in said


@pytest.mark.long
def test_rank_0_evaluates_while_the_others_wait(start: Start) -> None:
    job = start("hang_rank0_evaluates", 3)

    code, finding = only_finding(report_on(job, 1))

    assert code == "DD903"
    assert (finding["culprits"], finding["victims"]) == ([0], [1, 2])
    assert finding["where"][0]["line"] == line_of("hang_rank0_evaluates", "time.sleep(300)")
    assert finding["where"][0]["function"] == "evaluate"


def test_a_rank_that_was_killed(start: Start) -> None:
    job = start("hang_killed", 3)

    code, finding = only_finding(report_on(job, 1))

    assert (code, finding["culprits"], finding["victims"]) == ("DD901", [1], [0, 2])
    assert finding["confidence"] == "certain"
    assert "SIGKILL" in finding["message"]


def test_a_worker_that_is_stuck_in_the_dataset(start: Start) -> None:
    job = start("hang_loader_worker", 2)

    code, finding = only_finding(report_on(job, 1))

    assert (code, finding["culprits"], finding["victims"]) == ("DD907", [1], [0])
    assert finding["where"][0]["line"] == line_of("hang_loader_worker", "time.sleep(300)")


@pytest.mark.long
def test_all_in_the_same_call(start: Start) -> None:
    job = start("hang_same_call", 2)

    code, finding = only_finding(report_on(job, 1))

    assert (code, finding["culprits"], finding["victims"]) == ("DD908", [], [0, 1])
    assert finding["confidence"] == "possible"


@pytest.mark.long
def test_two_groups_that_are_used_in_opposite_order(start: Start) -> None:
    job = start("hang_crossed_groups", 2, recorded=True)

    code, finding = only_finding(report_on(job, 1))

    assert (code, finding["culprits"], finding["confidence"]) == ("DD911", [0, 1], "certain")


@pytest.mark.long
def test_native_code_that_keeps_the_gil(start: Start) -> None:
    job = start("hang_gil_held", 2)

    code, finding = only_finding(report_on(job, 1))

    assert (code, finding["culprits"], finding["victims"]) == ("DD909", [1], [0])


def test_a_recorded_rank_tells_what_is_pending_although_its_gil_is_kept(start: Start) -> None:
    """By torch's own server in C++, and by the record: both count the collectives alike."""
    job = start("hang_gil_held", 2, recorded=True)

    code, finding = only_finding(report_on(job, 1))

    assert (code, finding["culprits"], finding["victims"]) == ("DD909", [1], [0])
    said = {(each["what"], each["value"]) for each in finding["evidence"]}
    assert ("rank 1, its flight recorder", "nothing is pending") in said
    (record,) = [value for what, value in said if what == "rank 0, its record"]
    (pending,) = [value for what, value in said if what == "rank 0, its flight recorder"]
    number = record.split("number ")[1].split()[0]
    assert pending.startswith(f"number {number} (all_reduce) of group 0 is pending, sizes 8, since")


@pytest.mark.long
def test_a_thread_that_keeps_a_rank_from_ending(start: Start) -> None:
    job = start("hang_at_exit", 2)

    code, finding = only_finding(report_on(job, 1))

    assert (code, finding["culprits"]) == ("DD912", [0])
    assert finding["where"][0]["function"] == "upload"


@pytest.mark.long
def test_a_barrier_that_only_one_rank_makes(start: Start) -> None:
    job = start("hang_mismatch", 3)

    code, finding = only_finding(report_on(job, 1))

    assert (code, finding["culprits"], finding["confidence"]) == ("DD904", [0], "possible")


@pytest.mark.long
def test_recorded_ranks_tell_which_of_their_calls_differ(start: Start) -> None:
    job = start("hang_mismatch", 3, recorded=True, hangs=False)
    seen: dict[str, Any] = {}

    def is_judged() -> bool:
        """The recorder's own work may be taken for progress at first."""
        seen.update(json.loads(diagnose("--pid", str(job.launcher), "--json").out))
        return seen["primary"] is not None

    job.wait_until(is_judged)

    code, finding = only_finding(seen)
    assert (code, finding["culprits"], finding["confidence"]) == ("DD904", [0], "likely")
    assert "rank 0 barrier" in finding["message"]
    assert "ranks 1 and 2 all_reduce of 5 Float" in finding["message"]
    assert finding["where"][0]["line"] == line_of("hang_mismatch", "dist.barrier()")


@pytest.mark.long
def test_spawned_ranks_without_an_environment(start: Start) -> None:
    job = start("hang_spawned", 2, spawned=True)

    code, finding = only_finding(report_on(job, 1))

    assert (code, finding["culprits"], finding["victims"]) == ("DD903", [1], [0])
    assert finding["where"][0]["function"] == "save_checkpoint"


def test_a_healthy_job_is_never_a_hang_and_a_stopped_rank_of_it_is(start: Start) -> None:
    job = start("healthy", 2, hangs=False)

    for _ in range(5):
        report = report_on(job, 0)
        assert only_finding(report)[0] == "DD906"
        assert report["primary"] is None

    os.kill(job.rank(1), signal.SIGSTOP)
    time.sleep(SETTLE_SECONDS)
    code, finding = only_finding(report_on(job, 1))
    os.kill(job.rank(1), signal.SIGCONT)

    assert (code, finding["culprits"], finding["victims"]) == ("DD910", [1], [0])


@pytest.mark.long
def test_a_rank_that_computes_while_the_other_waits_is_slow(start: Start) -> None:
    job = start("busy_rank", 2, hangs=False)

    for _ in range(3):  # at the first look rank 0 may still be on its way into the collective
        code, finding = only_finding(report_on(job, 0))
        assert code == "DD906"
        if finding["victims"]:
            break

    assert finding["victims"] == [0]
    assert finding["where"][0]["function"] == "score"


def test_two_jobs_at_once_are_told_apart_and_it_is_fast(start: Start) -> None:
    late, spawned = start("hang_rank0_evaluates", 3), start("hang_spawned", 2, spawned=True)

    began = time.monotonic()
    done = diagnose("--json")
    took_s = time.monotonic() - began

    by_launcher = {report["name"]: report for report in json.loads(done.out)}
    for job, culprits in ((late, [0]), (spawned, [1])):
        (name,) = [name for name in by_launcher if f"pid {job.launcher})" in name]
        assert only_finding(by_launcher[name])[1]["culprits"] == culprits
    assert took_s < 10  # 1.5 s where nothing else runs


def test_the_text_says_the_verdict_first_and_with_v_the_stacks(start: Start) -> None:
    job = start("hang_rank0_evaluates", 3)

    done = diagnose("--pid", str(job.rank(2)), "-v")

    assert done.status == 1
    launcher = Processes().stat(job.launcher)
    assert launcher is not None
    started_by = diagnose("--pid", str(launcher.parent))  # as `ddpdoctor run` would be
    assert started_by.out.splitlines()[0] == done.out.splitlines()[0]
    first, *rest = done.out.splitlines()
    assert first.startswith("Rank 0 is at hang_rank0_evaluates.py:")
    text = "\n".join(rest)
    assert "DD903 missing-rank" in text
    assert "time.sleep(300)" in text
    assert "ranks 1 and 2\n" in text
    assert done.err == ""


def test_a_process_that_is_no_rank_and_one_that_is_not_there() -> None:
    none = diagnose("--pid", str(2**22 - 1))
    own = diagnose("--pid", str(os.getpid()))

    assert (none.status, own.status) == (2, 2)
    assert "there is no process" in none.err
    assert "neither a rank nor the launcher" in own.err


def test_a_zombie_is_told_apart() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    try:
        deadline = time.monotonic() + 20
        while (stat := Processes().stat(child.pid)) and stat.state != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        done = diagnose("--pid", str(child.pid))
    finally:
        child.wait(10)

    assert done.status == 2
    assert "zombie" in done.err
