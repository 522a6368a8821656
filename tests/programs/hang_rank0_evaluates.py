"""Rank 0 evaluates within the step loop while the other ranks wait for it in an all-reduce."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def evaluate() -> None:
    time.sleep(300)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    total = torch.zeros(8)
    for step in range(4):
        if step == 2:
            Path(sys.argv[1], f"ready-{rank}").touch()
            if rank == 0:
                evaluate()
        dist.all_reduce(total)
    dist.destroy_process_group()


main()
