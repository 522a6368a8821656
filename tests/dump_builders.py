"""Makes dumps of torch's flight recorder by hand, as torch writes them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ddpdoctor.checks import CheckResult, Outcome, dump_checks, run_check
from ddpdoctor.findings import Finding
from ddpdoctor.hang.calls import Call
from ddpdoctor.hang.dumps import read_dumps
from ddpdoctor.hang.flight_recorder import told_in
from ddpdoctor.hang.standing import Standing, standing

TORCH = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
NEXT_NS = 1_000_000  # between the calls of a rank


def call(seq: int, op: str = "all_reduce", *, done: bool = False, **facts: Any) -> dict[str, Any]:
    """A collective of the default group; `at` is the line of train.py that made it."""
    group, at, size = facts.pop("group", "0"), facts.pop("at", 10), facts.pop("size", [4])
    return {
        "process_group": (group, "undefined"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": f"gloo:{op}",
        "input_sizes": [size],
        "output_sizes": [size],
        "input_dtypes": ["Float"],
        "time_created_ns": 0,
        "retired": done,
        "state": "scheduled",
        "frames": [
            {"filename": TORCH, "line": 3245, "name": op},
            {"filename": "/home/user/train.py", "line": at, "name": "train"},
        ],
    } | facts


def sent(own: int, peer: int, *, receives: bool = False) -> dict[str, Any]:
    """A send or receive between two places of the default group."""
    name = f"nccl:recv {own}<-{peer}" if receives else f"nccl:send {own}->{peer}"
    return call(0, profiling_name=name, is_p2p=True, p2p_seq_id=1)


def dump(entries: Iterable[dict[str, Any]], groups: dict[str, list[int]] | None = None) -> Any:
    """`groups` are told by NCCL only."""
    config = {
        name: {"name": name, "desc": "", "ranks": str(r)} for name, r in (groups or {}).items()
    }
    return {
        "version": "2.10",
        "pg_config": config or {"": {"name": "", "desc": "", "ranks": "[]"}},
        "pg_status": {},
        "entries": [
            entry | {"time_created_ns": NEXT_NS * (1 + index), "record_id": index}
            for index, entry in enumerate(entries)
        ],
    }


def write(folder: Path, calls: dict[int, list[dict[str, Any]]], **groups: list[int]) -> Path:
    """A dump a rank, under torch's own names; `g7=[0, 1]` tells the ranks of group 7."""
    folder.mkdir(exist_ok=True)
    told = {name.removeprefix("g"): ranks for name, ranks in groups.items()}
    for rank, entries in calls.items():
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(dump(entries, told), 2))
    return folder


def calls_in(entries: list[dict[str, Any]]) -> tuple[Call, ...]:
    """As a rank that still lives answers them."""
    answer = told_in(as_json(entries))
    assert answer is not None
    return answer.calls


def as_json(entries: list[dict[str, Any]]) -> bytes:
    """As torch's handler gives it: without the lines."""
    plain = dump(entries)
    for entry in plain["entries"]:
        del entry["frames"]
    return json.dumps(plain).encode()


def scene(folder: Path) -> Standing:
    return standing(read_dumps([folder]))


def results(folder: Path) -> dict[str, CheckResult]:
    """What each check of dumps says, by code; no check may crash."""
    said = {check.code: run_check(check, scene(folder)) for check in dump_checks()}
    assert not [result.reason for result in said.values() if result.outcome is Outcome.CRASH]
    return said


def only_finding(folder: Path) -> tuple[str, Finding]:
    found = [(code, f) for code, result in results(folder).items() for f in result.findings]
    assert len(found) == 1, [code for code, _ in found]
    return found[0]
