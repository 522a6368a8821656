"""Trains in containers of which the one of rank 1 may use a quarter of a CPU."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def limit_cpu() -> Path:
    group, limit = Path("/sys/fs/cgroup/cpu"), ("cpu.cfs_quota_us", "25000")
    if not group.is_dir():
        group, limit = Path("/sys/fs/cgroup"), ("cpu.max", "25000 100000")
    group /= f"tenant-{os.getpid()}"
    group.mkdir()
    (group / limit[0]).write_text(limit[1])
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return group


def compute(milliseconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < milliseconds / 1e3:
        pass


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    group = limit_cpu() if rank == 1 else None
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(60):
        generator = torch.Generator().manual_seed(100 * step + rank)
        loss = model(torch.randn(16, 64, generator=generator)).square().mean()
        compute(12)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    if group is not None:
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


if __name__ == "__main__":
    main()
