"""The facts of this process and its node, for `ddpdoctor check`."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

from ddpdoctor.launchfacts import Process
from ddpdoctor.preflight import environment as own
from ddpdoctor.preflight.devices import visible_devices
from ddpdoctor.preflight.interfaces import network
from ddpdoctor.preflight.launcher import Launch
from ddpdoctor.preflight.limits import limits


def this_process(launch: Launch, script: Path | None = None) -> Process:
    """What is true of this process now; of a script, its hash and that of files beside it."""
    process = of_this_node(as_launched(launch))
    return replace(process, code=_code(script)) if script else process


def as_launched(launch: Launch) -> Process:
    """What the launcher told this process, and its versions: quickly known, nothing of the node."""
    return Process(
        host=socket.gethostname(),
        pid=os.getpid(),
        network_id=kernel_id("net"),
        rank=launch.rank,
        world_size=launch.world_size,
        local_rank=launch.local_rank,
        local_world_size=launch.local_world_size,
        node_rank=launch.node_rank,
        environment=own.environment(dict(os.environ)),
        versions=own.versions(),
        problems=launch.problems,
        unit=launch.unit,
    )


def of_this_node(process: Process) -> Process:
    """With its command line, the CPUs and GPUs it may use, its limits and its network."""
    affinity = os.sched_getaffinity(0)
    return replace(
        process,
        command=own.command_line(_command()),
        cpus=len(affinity),
        affinity=tuple(sorted(affinity)),
        devices=visible_devices(dict(os.environ)),
        limits=limits(),
        network=network(),
    )


def kernel_id(namespace: str) -> str:
    """Boot id and a namespace of this process: equal where two processes share it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        return f"{boot}/{os.readlink(f'/proc/self/ns/{namespace}')}"
    except OSError:  # a kernel without namespaces of this kind
        return boot


def _command() -> list[str]:
    raw = Path("/proc/self/cmdline").read_bytes()[: 64 * 1024]
    return os.fsdecode(raw).rstrip("\0").split("\0")


def _code(script: Path) -> dict[str, str]:
    folder = script.resolve().parent
    return own.hashes([script.resolve(), *folder.glob("*.py")], folder)
