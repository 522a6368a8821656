"""Makes hang snapshots by hand: ranks that stand at lines of one imagined script."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.checks import CheckResult, hang_checks, run_check
from ddpdoctor.findings import Finding
from ddpdoctor.hang.snapshot import (
    DeadRank,
    HangSnapshot,
    Job,
    LastCollective,
    LoaderWorker,
    Movement,
    RankProcess,
    ThreadStack,
)
from ddpdoctor.stackframes import Frame, Loop, Origin

SCRIPT = "/home/user/train.py"
TORCH = "/usr/lib/python3.11/site-packages/torch"
STEP_LOOP = Loop(20, 40)
STILL = Movement(watched_s=1.2, io_bytes=0, main_thread_woke=0)
BUSY = replace(STILL, cpu_s=1.1)


def user(line: int, text: str = "", function: str = "train", loops: tuple[Loop, ...] = ()) -> Frame:
    """A line of the script; within the step loop where its number says so."""
    if not loops and line in STEP_LOOP:
        loops = (STEP_LOOP,)
    return Frame(SCRIPT, line, function, Origin.USER, text, loops)


def torch(file: str, function: str) -> Frame:
    return Frame(f"{TORCH}/{file}", 100, function, Origin.TORCH)


ALL_REDUCE = (
    torch("distributed/distributed_c10d.py", "all_reduce"),
    torch("distributed/c10d_logger.py", "wrapper"),
)
BARRIER = (
    torch("distributed/distributed_c10d.py", "barrier"),
    torch("distributed/c10d_logger.py", "wrapper"),
)
BACKWARD = (
    torch("autograd/graph.py", "_engine_run_backward"),
    torch("autograd/__init__.py", "backward"),
    torch("_tensor.py", "Tensor.backward"),
)
DESTROY = (torch("distributed/distributed_c10d.py", "destroy_process_group"),)
NEXT_BATCH = (
    Frame("/usr/lib/python3.11/selectors.py", 415, "select", Origin.PYTHON),
    torch("utils/data/dataloader.py", "_MultiProcessingDataLoaderIter._try_get_data"),
    torch("utils/data/dataloader.py", "_BaseDataLoaderIter.__next__"),
)
WORKER_LOOP = torch("utils/data/_utils/worker.py", "_worker_loop")


def at(number: int | None, *frames: Frame, movement: Movement = STILL, **facts) -> RankProcess:
    """A rank whose main thread shows these frames, innermost first."""
    pid = 1000 + (number if number is not None else 99)
    thread = ThreadStack(pid, "MainThread", tuple(frames))
    facts = {"threads": (thread,), "wchan": "futex_do_wait"} | facts
    return RankProcess(number, pid, movement=movement, **facts)


def in_backward(number: int, **facts) -> RankProcess:
    return at(number, *BACKWARD, user(30, "loss.backward()"), **facts)


def in_record(seq: int, op: str = "all_reduce", pending: bool = True) -> tuple[LastCollective, ...]:
    return (LastCollective("0", (0, 1), seq, op, pending),)


def worker(*frames: Frame, state: str = "S") -> LoaderWorker:
    return LoaderWorker(2000, state, ThreadStack(2000, "MainThread", (*frames, WORKER_LOOP)))


def snapshot(
    *ranks: RankProcess, dead: tuple[DeadRank, ...] = (), world_size: int | None = None, **facts
) -> HangSnapshot:
    job = Job("10.0.0.1:29500", "run", 999, world_size or len(ranks) + len(dead))
    return HangSnapshot(job, "node1", ranks, dead, 1.2, **facts)


def results(seen: HangSnapshot) -> dict[str, CheckResult]:
    """What each hang check says, by code; no check may crash."""
    said = {check.code: run_check(check, seen) for check in hang_checks()}
    assert not [result.reason for result in said.values() if result.outcome == "crash"]
    return said


def only_finding(seen: HangSnapshot) -> tuple[str, Finding]:
    """The one finding that the hang checks together have on this snapshot, and its code."""
    found = [
        (code, finding) for code, result in results(seen).items() for finding in result.findings
    ]
    assert len(found) == 1, [code for code, _ in found]
    return found[0]


def codes(seen: HangSnapshot) -> list[str]:
    return [code for code, result in results(seen).items() if result.findings]
