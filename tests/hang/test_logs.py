"""What logs, log folders and error files of a job tell, in the words of those that write them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.diagnose_log import LogVerdict, judge_logs, must_say_something
from ddpdoctor.errors import NothingToDiagnose
from ddpdoctor.findings import Confidence, Finding
from tests.dump_builders import call, write
from tests.launching import ROOT, Finished, ddpdoctor, finish

CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by "
    "peer [127.0.0.1]:48611"
)
WATCHDOG = (
    "[rank{0}]:[E1201 00:10:00.1 ProcessGroupNCCL.cpp:683] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, "
    "Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)
LAST = (
    "[rank{0}]:[E1201 00:10:00.2 ProcessGroupNCCL.cpp:2241] [PG ID 0 PG GUID 0(default_pg) Rank "
    "{0}]  failure detected by watchdog at work sequence id: {1} PG status: last enqueued work: "
    "{1}, last completed work: {2}"
)
TABLE = """
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-12-01_00:00:07
  host      : node1
  rank      : {other} (local_rank: {other})
  exitcode  : 1 (pid: 4243)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_00:00:06
  host      : node1
  rank      : {first} (local_rank: {first})
  exitcode  : {status} (pid: 4242)
  error_file: <N/A>
  traceback : {why}
============================================================
"""


def traceback(rank: int | str, line: int, error: str) -> str:
    mark = f"[rank{rank}]: " if isinstance(rank, int) else rank
    return "\n".join(
        mark + each
        for each in (
            "Traceback (most recent call last):",
            '  File "/home/user/train.py", line 90, in <module>',
            "    main()",
            f'  File "/home/user/train.py", line {line}, in train',
            "    loss.backward()",
            '  File "/usr/lib/python3.11/site-packages/torch/_tensor.py", line 630, in backward',
            "    torch.autograd.backward(",
            error,
        )
    )


def judged(folder: Path, *texts: str) -> LogVerdict:
    paths = [folder / f"part-{letter}.log" for letter in "abcd"[: len(texts)]]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return judge_logs(paths)


def only(verdict: LogVerdict) -> tuple[str, Finding]:
    assert not [r.reason for r in verdict.results if r.outcome is Outcome.CRASH]
    found = [(result.code, finding) for result, finding in verdict.findings]
    assert len(found) == 1, found
    return found[0]


def test_a_killed_rank_and_not_the_one_that_complains_most(tmp_path: Path) -> None:
    log = traceback(0, 31, CLOSED) + TABLE.format(
        other=0, first=1, status=-9, why="Signal 9 (SIGKILL) received by PID 4242"
    )

    code, finding = only(judged(tmp_path, log))

    assert (code, finding.culprits, finding.victims) == ("DD901", (1,), (0,))
    assert "rank 1 was killed by SIGKILL" in finding.message
    assert "out-of-memory" in finding.fix
    assert "follows from another's end" in str(finding.evidence)


def test_the_launcher_may_see_the_victim_first(tmp_path: Path) -> None:
    """torchrun's root cause is what it noticed first, not what came first."""
    log = traceback(2, 31, CLOSED) + "\n" + traceback(1, 17, "ValueError: label 9 is out of range")
    log += TABLE.format(other=1, first=2, status=1, why="To enable traceback see: https://…")

    code, finding = only(judged(tmp_path, log))

    assert (code, finding.culprits) == ("DD901", (1,))
    assert "ValueError at train.py:17" in finding.message
    assert finding.where[0].line == 17


def test_a_signal_says_more_than_an_exit_status_that_was_seen_earlier(tmp_path: Path) -> None:
    log = TABLE.format(other=1, first=0, status=1, why="To enable traceback see: …")
    log = log.replace("  exitcode  : 1 (pid: 4243)", "  exitcode  : -9 (pid: 4243)")

    _, finding = only(judged(tmp_path, log))

    assert finding.culprits == (1,)


def test_an_error_whose_rank_only_the_table_tells(tmp_path: Path) -> None:
    log = traceback("", 17, "KeyError: 'image'")
    log += TABLE.format(other=0, first=3, status=1, why="To enable").replace(
        "  exitcode  : 1 (pid: 4243)", "  exitcode  : -15 (pid: 4243)"
    )

    code, finding = only(judged(tmp_path, log))

    assert (code, finding.culprits) == ("DD901", (3,))
    assert "KeyError" in finding.message


def test_device_memory(tmp_path: Path) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."

    code, finding = only(judged(tmp_path, traceback(5, 40, error) + "\n" + traceback(0, 9, CLOSED)))

    assert (code, finding.culprits) == ("DD901", (5,))
    assert "smaller batches" in finding.fix


def test_a_loader_worker_that_was_killed(tmp_path: Path) -> None:
    error = (
        "RuntimeError: DataLoader worker (pid 311) is killed by signal: Bus error. It is possible "
        "that dataloader's workers are out of shared memory."
    )

    code, finding = only(judged(tmp_path, traceback(2, 40, error)))

    assert (code, finding.culprits) == ("DD901", (2,))
    assert "/dev/shm" in finding.fix


def test_a_rank_that_the_watchdogs_waited_for(tmp_path: Path) -> None:
    lines = [WATCHDOG.format(rank, 7, "ALLREDUCE", 1) for rank in (1, 2, 3)]
    lines += [LAST.format(rank, 7, 6) for rank in (1, 2, 3)] + [LAST.format(0, 6, 6)]

    code, finding = only(judged(tmp_path, "\n".join(lines)))

    assert (code, finding.culprits, finding.victims) == ("DD903", (0,), (1, 2, 3))
    assert "allreduce (number 7) of 1 elements after 600 s" in finding.message


def test_a_rank_that_is_one_call_behind(tmp_path: Path) -> None:
    lines = [WATCHDOG.format(0, 7, "ALLREDUCE", 4), WATCHDOG.format(1, 6, "BROADCAST", 4)]

    code, finding = only(judged(tmp_path, "\n".join(lines)))

    assert (code, finding.culprits) == ("DD903", (1,))


def test_different_calls_of_one_number(tmp_path: Path) -> None:
    lines = [WATCHDOG.format(0, 7, "ALLREDUCE", 4), WATCHDOG.format(1, 7, "BROADCAST", 4)]

    code, finding = only(judged(tmp_path, "\n".join(lines)))

    assert (code, finding.culprits) == ("DD904", ())
    assert "rank 0 gave up allreduce" in finding.message


def test_all_in_one_call(tmp_path: Path) -> None:
    log = "\n".join(WATCHDOG.format(rank, 1, "BARRIER", 1) for rank in range(4))

    code, finding = only(judged(tmp_path, log))

    assert (code, finding.culprits) == ("DD908", ())


def test_one_watchdog_of_many_is_no_verdict(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "world_size=8\n" + WATCHDOG.format(3, 7, "ALLREDUCE", 4))

    assert not verdict.findings
    (skipped,) = [r for r in verdict.results if r.outcome is Outcome.SKIPPED]
    assert "not in this log" in (skipped.reason or "")


def test_what_debug_detail_says(tmp_path: Path) -> None:
    log = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running "
        "collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[4], "
        "TensorDtypes=Float), but Rank 2 is running collective: CollectiveFingerPrint("
        "SequenceNumber=5, OpType=BROADCAST)."
    )

    code, finding = only(judged(tmp_path, log))

    assert (code, finding.confidence) == ("DD904", Confidence.CERTAIN)
    assert "rank 0 is in allreduce of [4], and rank 2 in broadcast" in finding.message


def test_a_monitored_barrier(tmp_path: Path) -> None:
    error = "RuntimeError: Rank 2 failed to pass monitoredBarrier in 5000 ms"

    code, finding = only(judged(tmp_path, f"{traceback(0, 4, error)} Timed out"))

    assert (code, finding.culprits) == ("DD903", (2,))


def test_a_port_that_another_job_holds(tmp_path: Path) -> None:
    error = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
        "address already in use"
    )

    code, finding = only(judged(tmp_path, traceback(0, 4, error)))

    assert code == "DD408"
    assert "port 29500" in finding.message


def test_ranks_that_never_came(tmp_path: Path) -> None:
    error = (
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 4/8 "
        "clients joined."
    )

    code, finding = only(judged(tmp_path, traceback(0, 4, error)))

    assert code == "DD407"
    assert "only 4 of 8 ranks" in finding.message


def test_a_terminal_that_was_closed(tmp_path: Path) -> None:
    error = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3 got signal: 1"

    code, finding = only(judged(tmp_path, error))

    assert code == "DD901"
    assert "tmux" in finding.fix


def test_slurm_says_that_memory_ran_out(tmp_path: Path) -> None:
    log = (
        "srun: error: node7: task 3: Killed\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=42.0. Some of the step tasks have "
        "been OOM Killed.\n" + traceback(0, 31, CLOSED)
    )

    code, finding = only(judged(tmp_path, log))

    assert (code, finding.culprits) == ("DD901", (3,))
    assert "oom_kill" in str(finding.evidence)
    assert "memory" in finding.fix


def test_torchruns_folder_and_error_files(tmp_path: Path) -> None:
    attempt = tmp_path / "none_abc" / "attempt_0"
    for rank in (0, 1):
        (attempt / str(rank)).mkdir(parents=True)
        (attempt / str(rank) / "stdout.log").write_text("step 7\n")
    (attempt / "0" / "stderr.log").write_text(traceback("", 31, CLOSED))
    said = {
        "message": "FileNotFoundError: [Errno 2] No such file: '/data/17.png'",
        "extraInfo": {"py_callstack": traceback("", 55, "…"), "timestamp": "1764547200"},
    }
    (attempt / "1" / "error.json").write_text(json.dumps({"message": said}))

    code, finding = only(judge_logs([tmp_path]))

    assert (code, finding.culprits) == ("DD901", (1,))
    assert finding.where[0].line == 55


def test_errors_that_the_script_survived_are_no_end(tmp_path: Path) -> None:
    log = "skipped a batch: CUDA out of memory\nWARNING ValueError: odd image\nstep 10 loss 0.1\n"

    verdict = judged(tmp_path, log)

    assert verdict.log.says_nothing
    assert not verdict.findings


@pytest.mark.parametrize(
    "damage",
    [
        os.urandom(100_000),
        b"\x00" * 100_000,
        b"[rank99999999999]: Traceback (most recent call last):\n" * 100,
        b"Root Cause (first observed failure):\n[0]:\n  rank : 999999999999 (local_rank: 1)\n",
        b"x" * 5_000_000,
        b"Rank " * 100_000 + b"] Watchdog caught collective operation timeout: WorkNCCL(",
        b"[" * 200_000,
    ],
)
def test_damaged_and_hostile_logs(tmp_path: Path, damage: bytes) -> None:
    for name in ("error.json", "torch.log"):
        (tmp_path / name).write_bytes(damage)

    verdict = judge_logs([tmp_path])

    assert not [r.reason for r in verdict.results if r.outcome is Outcome.CRASH]


def test_credentials_do_not_come_out_of_a_log(tmp_path: Path) -> None:
    error = "ValueError: cannot open s3://me:hunter2@bucket with token=abcdef123456"

    _, finding = only(judged(tmp_path, traceback(1, 4, error)))

    assert "hunter2" not in str(finding)
    assert "abcdef" not in str(finding)


def diagnose(*arguments: str) -> Finished:
    return finish(ddpdoctor("diagnose", *arguments), ROOT, seconds=30)


def test_by_the_command_line(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(traceback(1, 17, "ValueError: \x1b[2J") + "\n" + traceback(0, 31, CLOSED))

    shown, as_json = diagnose(str(log)), diagnose(str(log), "--json")

    assert shown.status == as_json.status == 1
    assert shown.out.startswith("Rank 1 ended with ValueError at train.py:17")
    assert "\x1b" not in shown.out
    assert json.loads(as_json.out)["primary"] == "DD901"


def test_logs_that_are_not_there_or_say_nothing(tmp_path: Path) -> None:
    none = diagnose("--log", str(tmp_path / "no.log"), str(tmp_path))

    assert none.status == 2
    assert none.err.count("\n") == 1
    with pytest.raises(NothingToDiagnose, match="tells of no error"):
        must_say_something(judged(tmp_path, "step 1\n"))


def test_a_log_beside_dumps_tells_why_a_rank_left_none(tmp_path: Path) -> None:
    waits = [call(1, done=True), call(2, done=True), call(3, at=12)]
    folder = write(tmp_path / "dumps", {0: waits, 1: waits, 2: waits}, g0=[0, 1, 2, 3])
    log = tmp_path / "job.log"
    log.write_text("srun: error: node7: task 3: Killed\n")

    done = diagnose(str(folder), "--log", str(log), "--json")

    report = json.loads(done.out)
    (finding,) = [each for result in report["results"] for each in result["findings"]]
    assert (report["primary"], finding["culprits"]) == ("DD901", [3])
    assert "log, rank 3" in [each["what"] for each in finding["evidence"]]


def test_a_log_that_tells_what_came_before_the_dumps(tmp_path: Path) -> None:
    waits, done = [call(1, done=True), call(2, at=12)], [call(1, done=True)]
    folder = write(tmp_path / "dumps", {0: waits, 1: done}, g0=[0, 1])
    log = tmp_path / "job.log"
    log.write_text(traceback(0, 17, "ValueError: odd"))

    report = json.loads(diagnose(str(folder), "--log", str(log), "--json").out)

    assert report["primary"] == "DD901"
    assert [r["code"] for r in report["results"] if r["findings"]] == ["DD901"]
    assert any("is in no call" in note for note in report["notes"])
