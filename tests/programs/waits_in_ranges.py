"""Trains with sleeps; in each range of steps the ranks wait for another reason.

Four ranks, as if on two hosts. Rank 1 is in a control group, given as an argument, whose quota it
sets itself; without one that range has no fault.
"""

import gc
import os
import random
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import ddpdoctor

RANGES = {  # what happens, and for how many steps
    "nothing": 30,
    "lengths": 30,
    "host": 24,
    "garbage": 32,
    "saves": 40,
    "stalls": 40,
    "growth": 60,
    "quota": 30,
}
USUAL_S, LATE_S, STALL_S = 0.008, 0.02, 0.15
TOKEN_S = 0.0002  # of work
GARBAGE = 300_000  # containers that a collection looks through
FREE, HELD = 1_000_000, 8_000  # microseconds of CPU in a period of 100 ms


def first_step(name: str) -> int:
    names = list(RANGES)
    return sum(RANGES[before] for before in names[: names.index(name)])


def range_of(step: int) -> str:
    return next(name for name in reversed(RANGES) if first_step(name) <= step)


def length(rank: int, step: int) -> int:
    if range_of(step) != "lengths":
        return 50
    return random.Random(1000 * rank + step).randint(10, 200)


def compute(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


def set_quota(group: Path | None, microseconds: int) -> None:
    if group is None:
        return
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{microseconds} 100000")
    else:
        (group / "cpu.cfs_quota_us").write_text(str(microseconds))


class Net(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.step = rank, 0
        self.layer = nn.Linear(1, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        name, rank = range_of(self.step), self.rank
        late = {
            "host": LATE_S * (rank >= 2),
            "stalls": STALL_S * (rank == 2 and self.step % 8 == 0),
        }.get(name, 0.0)
        time.sleep(len(x) * TOKEN_S + late)
        if name == "quota" and rank == 1:
            compute(0.008)
        return self.layer(x)


def between(rank: int, step: int, garbage: list[list[int]]) -> None:
    """After the optimizer; the next step has the time."""
    name, following = range_of(step + 1), step + 1
    if name == "garbage" and rank == 1 and following % 4 == 0:
        gc.collect()
    if name == "saves" and rank == 0 and following % 8 == 0:
        time.sleep(STALL_S)
    if name == "growth":
        time.sleep(0.0004 * (following - first_step("growth")))


def main(group: Path | None) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    name = "node-a" if rank < 2 else "node-b"
    socket.gethostname = lambda: name
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gc.disable()
    gc.freeze()
    garbage = [[number] for number in range(GARBAGE)] if rank == 1 else []
    if rank != 1:
        group = None
    set_quota(group, FREE)
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    net = Net(rank)
    model = ddpdoctor.wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step in range(sum(RANGES.values())):
        net.step = step
        if step == first_step("quota"):
            set_quota(group, HELD)
        loss = model(torch.ones(length(rank, step), 1)).mean()
        time.sleep(USUAL_S)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        between(rank, step, garbage)
    set_quota(group, FREE)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
