"""Launchers that have started no rank yet since they wait for the other nodes' launchers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from typing import Final

from ddpdoctor.hang.processes import Processes, Stat
from ddpdoctor.hang.pyspy import Dump, dump_all
from ddpdoctor.hang.snapshot import HangSnapshot, Job, WaitingLauncher

_PROGRAMS: Final = ("torchrun", "accelerate")
_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
# torch's agent: it meets the other agents first, then counts the ranks of all of them
_MEETS: Final = ("next_rendezvous", "_rendezvous", "_assign_worker_ranks")
_ELASTIC: Final = "torch/distributed/"
_CALL_TIMEOUT_S: Final = 3.0


def waiting_launchers(
    processes: Processes,
    watch_s: float,
    busy: Iterable[int],
    pid: int | None = None,
    left_s: float = float("inf"),
) -> list[HangSnapshot]:
    """Each one that stood there over the time watched. `busy` are launchers that have ranks.

    `left_s`: time after which no further look is begun.
    """
    began = time.monotonic()
    stats = processes.all()
    skipped = set(busy)
    found = [
        stat.pid
        for stat in stats.values()
        if (pid is None or stat.pid == pid)
        and stat.pid not in skipped
        and stat.state not in ("Z", "X", "T", "t")
        and _starts_ranks(processes.command(stat.pid))
        and processes.has_torch(stat.pid)
    ]
    meeting = [each for each, dump in _dumps(found).items() if _meets_in(dump)]
    if not meeting:
        return []
    time.sleep(max(0.0, min(watch_s, left_s - (time.monotonic() - began))))
    snapshots = []
    for each, dump in _dumps(meeting).items():
        function = _meets_in(dump)
        if function is not None and not _children(processes.all(), each):
            watched_s = time.monotonic() - began
            snapshots.append(_snapshot(each, processes.command(each), function, watched_s))
    return snapshots


def _starts_ranks(command: list[str]) -> bool:
    names = [argument.rsplit("/", 1)[-1] for argument in command[:3]]
    return any(name in _PROGRAMS for name in names) or any(
        argument in _MODULES for argument in command[:6]
    )


def _dumps(pids: list[int]) -> dict[int, Dump]:
    return dump_all(pids, _CALL_TIMEOUT_S) if pids else {}


def _meets_in(dump: Dump) -> str | None:
    """The function of torch's agent in which its main thread waits for the other agents."""
    for thread in dump.threads:
        if thread.os_thread_id != dump.pid:
            continue
        for frame in thread.frames:
            name = frame.function.rsplit(".", 1)[-1]
            if name in _MEETS and _ELASTIC in frame.file:
                return name
    return None


def _children(stats: dict[int, Stat], parent: int) -> list[Stat]:
    return [stat for stat in stats.values() if stat.parent == parent and stat.state != "Z"]


def _snapshot(pid: int, command: list[str], function: str, watched_s: float) -> HangSnapshot:
    nodes = _option(command, "nnodes")
    address, port = _option(command, "master-addr"), _option(command, "master-port")
    endpoint = _option(command, "rdzv-endpoint") or (
        f"{address}:{port or 29500}" if address else ""
    )
    launcher = WaitingLauncher(pid, function, nodes, endpoint)
    job = Job(endpoint, _option(command, "rdzv-id"), pid, None)
    return HangSnapshot(job, socket.gethostname(), (), watched_s=watched_s, launcher=launcher)


def _option(command: list[str], name: str) -> str:
    """The value of one of torchrun's options, which it takes with dashes and underscores."""
    spellings = {f"--{name}", f"--{name.replace('-', '_')}"}
    for index, argument in enumerate(command):
        option, equals, value = argument.partition("=")
        if option in spellings:
            if equals:
                return value
            return command[index + 1] if index + 1 < len(command) else ""
    return ""
