"""What is true of this rank's process: host, clock, environment, versions, the script's code."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import socket
import sys
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from ddpdoctor.events import RankInfo
from ddpdoctor.recorder.callsite import is_user_file
from ddpdoctor.recorder.timers import CUDA_EVENT, HOST

ALLOWED: Final = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|PYTHONHASHSEED|"
    r"(NCCL|GLOO|OMP|MKL|TORCH|TORCHELASTIC|CUDA|SLURM|MASTER|PYTORCH)_\w+"
)
_CREDENTIAL: Final = re.compile(r"key|token|secret|passw|credential|auth|jwt", re.IGNORECASE)
_VERSIONED: Final = ("torch", "numpy", "torchvision", "transformers", "accelerate", "lightning")
_MAX_CODE_FILES: Final = 200
_MAX_CODE_BYTES: Final = 2 * 1024 * 1024
_MAX_VALUE: Final = 200  # characters of a variable's value that are kept


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
        clock_id=_kernel_id("time"),
        network_id=_kernel_id("net"),
        wall_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
        began_ns=time.monotonic_ns(),
        timer=CUDA_EVENT if device.type == "cuda" else HOST,
        environment=environment(dict(os.environ)),
        versions=versions(),
        code=code_hashes(),
        threads=torch.get_num_threads(),
        cpus=len(os.sched_getaffinity(0)),
    )


def _kernel_id(namespace: str) -> str:
    """Boot id and a namespace of this process: equal where two processes share it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        return f"{boot}/{os.readlink(f'/proc/self/ns/{namespace}')}"
    except OSError:  # a kernel without namespaces of this kind
        return boot


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Variables of the allow-list; values that may be credentials are masked."""
    return {
        name: "(masked)" if _is_credential(name, value) else value[:_MAX_VALUE]
        for name, value in sorted(variables.items())
        if ALLOWED.fullmatch(name)
    }


def _is_credential(name: str, value: str) -> bool:
    return bool(_CREDENTIAL.search(name)) or bool(re.search(r"://[^/@\s]+@", value))


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


def code_hashes() -> dict[str, str]:
    """Hash of each file of the user's program that is loaded, by its path below the script."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if not script:
        return {}
    root = Path(script).resolve().parent
    hashes = {}
    files = sorted({file for module in list(sys.modules.values()) if (file := _source(module))})
    for file in files[:_MAX_CODE_FILES]:
        path = Path(file)
        if not path.is_relative_to(root):
            continue
        try:
            with path.open("rb") as opened:
                content = opened.read(_MAX_CODE_BYTES)
        except OSError:
            continue
        hashes[str(path.relative_to(root))] = hashlib.sha256(content).hexdigest()[:16]
    return hashes


def _source(module: object) -> str | None:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    resolved = os.path.realpath(file)
    return resolved if is_user_file(resolved) else None
