"""Rank 1 sleeps in C without releasing the GIL; rank 0 waits for it in an all-reduce."""

import ctypes
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(2, 4)).sum().backward()
    Path(sys.argv[1], f"ready-{rank}").touch()
    if rank == 1:
        ctypes.PyDLL(None).sleep(300)
    dist.all_reduce(torch.zeros(8))
    dist.destroy_process_group()


main()
