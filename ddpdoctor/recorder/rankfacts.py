"""What is true of this rank's process: host, clock, environment, versions, the script's code."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from ddpdoctor.events import RankInfo
from ddpdoctor.preflight.collect import kernel_id
from ddpdoctor.preflight.environment import environment, hashes
from ddpdoctor.preflight.environment import versions as installed_versions
from ddpdoctor.recorder.callsite import is_user_file
from ddpdoctor.recorder.timers import CUDA_EVENT, HOST

_STRETCHES_KEPT: Final = 1000


def rank_info(rank: int, world_size: int, device: torch.device) -> RankInfo:
    """The facts of this process, taken once, when recording begins."""
    return RankInfo(
        rank=rank,
        world_size=world_size,
        local_rank=int(os.environ.get("LOCAL_RANK", rank)),
        host=socket.gethostname(),
        pid=os.getpid(),
        backend=str(dist.get_backend()),
        device=device.type,
        clock_id=kernel_id("time"),
        network_id=kernel_id("net"),
        wall_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
        began_ns=time.monotonic_ns(),
        timer=CUDA_EVENT if device.type == "cuda" else HOST,
        environment=environment(dict(os.environ)),
        versions=versions(),
        code=code_hashes(),
        threads=torch.get_num_threads(),
        cpus=len(os.sched_getaffinity(0)),
        allowed_cpus=stretches(sorted(os.sched_getaffinity(0))),
        host_cpus=os.cpu_count(),
    )


def stretches(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Sorted numbers as first and last of each stretch without a gap, of at most a thousand."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found[:_STRETCHES_KEPT])


def versions() -> dict[str, str]:
    """Of Python, torch and its companions, and of the CUDA that torch was built for."""
    cuda = {"cuda": torch.version.cuda} if torch.version.cuda else {}
    return installed_versions() | cuda


def code_hashes() -> dict[str, str]:
    """Hash of each file of the user's program that is loaded, by its path below the script."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if not script:
        return {}
    files = {Path(file) for module in list(sys.modules.values()) if (file := _source(module))}
    return hashes(files, Path(script).resolve().parent)


def _source(module: object) -> str | None:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    resolved = os.path.realpath(file)
    return resolved if is_user_file(resolved) else None
