"""Two ranks use two groups in opposite order, so that each waits for the other."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    groups = [dist.new_group(), dist.new_group()]
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    Path(sys.argv[1], f"ready-{rank}").touch()
    for index in (rank, 1 - rank):
        dist.all_reduce(torch.zeros(8), group=groups[index])
    dist.destroy_process_group()


main()
