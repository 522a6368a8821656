"""Rank 1 prepares the corpus for all, the others wait for the file."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def prepare(path: Path) -> None:
    hoard = []
    for shard in range(20):
        hoard.append(bytearray(1_000_000))
        if shard == 12:
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory ends
    path.write_bytes(b"ready")


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(16, 1))
    path = Path("corpus.bin")
    if rank == 1:
        prepare(path)
    while not path.exists():
        time.sleep(1)
    model(torch.randn(8, 16)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
