"""The facts of one process as bytes, for the job's store and for a launch's folder."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import msgspec

from ddpdoctor.launchfacts import MOST_BYTES, MOST_RANKS, Process

_MOST = 2**63  # of any number in it; sizes and times stay far below


def encoded(process: Process) -> bytes:
    """What does not fit is left out: hashes first, then variables."""
    content = msgspec.json.encode(process)
    if len(content) > MOST_BYTES:
        content = msgspec.json.encode(replace(process, code={}))
    if len(content) > MOST_BYTES:
        content = msgspec.json.encode(replace(process, code={}, environment={}, command=()))
    return content


def decoded(content: bytes) -> Process | None:
    """The facts of another process; None where they cannot be read, or cannot be."""
    if len(content) > MOST_BYTES:
        return None
    try:
        process = msgspec.json.decode(content, type=Process)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return process if is_plausible(process) else None


def is_plausible(process: Process) -> bool:
    """Whether its numbers can be: files and other processes are foreign."""
    numbers = (process.rank, process.world_size, process.local_rank, process.local_world_size)
    return all(0 <= (number or 0) < MOST_RANKS for number in numbers) and _small(asdict(process))


def _small(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_small, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_small, value))
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) < _MOST
    return not isinstance(value, int) or abs(value) < _MOST
