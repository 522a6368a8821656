"""Rank 0 alone reaches a barrier within the step loop; the others wait in the next backward."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for step in range(4):
        if step == 2:
            Path(sys.argv[1], f"ready-{rank}").touch()
            if rank == 0:
                dist.barrier()
        model(torch.ones(2, 4)).sum().backward()
    dist.destroy_process_group()


main()
