"""Rank 1 computes for long within the step loop while rank 0 waits for it: slow, not stuck."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist


def score() -> float:
    total = 0.0
    while not Path(sys.argv[1], "stop").exists():
        total += sum(range(100_000))
    return total


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(2):
        if step == 1:
            Path(sys.argv[1], f"ready-{rank}").touch()
            if rank == 1:
                score()
        dist.all_reduce(torch.zeros(8))
    dist.destroy_process_group()


main()
