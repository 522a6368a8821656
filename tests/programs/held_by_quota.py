"""Rank 1 joins a control group with a CPU quota, given as an argument, and computes for a while.

It saves for how long it had no CPU in its computing, which it lacked, and in the whole loop, where
it also waited for the other rank.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ddpdoctor

STEPS = 25
CPU_MS = 10.0  # of computing in each step


def compute() -> float:
    """Use a CPU for CPU_MS; return the milliseconds that went by without one."""
    began, used = time.monotonic_ns(), time.thread_time_ns()
    while time.thread_time_ns() - used < CPU_MS * 1e6:
        pass
    return (time.monotonic_ns() - began - (time.thread_time_ns() - used)) / 1e6


def throttled_ms(group: Path) -> float:
    """As the kernel counts it for the whole group, over all CPUs."""
    words = (group / "cpu.stat").read_text().split()
    counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    return counts.get("throttled_time", 0) / 1e6 + counts.get("throttled_usec", 0) / 1e3


def main(group: Path, folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 1:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    model = ddpdoctor.wrap(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lacked = []
    throttled = throttled_ms(group)
    began, used = time.monotonic_ns(), time.thread_time_ns()
    for _ in range(STEPS):
        loss = model(torch.ones(8, 64)).sum()
        lacked.append(compute() if rank == 1 else 0.0)
        loss.backward()
        optimizer.step()
    off_cpu = time.monotonic_ns() - began - (time.thread_time_ns() - used)
    truth = {
        "lacked_ms": sum(lacked),
        "off_cpu_ms": off_cpu / 1e6,
        "throttled_ms": throttled_ms(group) - throttled,
    }
    (folder / f"lacked-{rank}.json").write_text(json.dumps(truth))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
