"""Rank 0 stands at the end of a deep recursion while the others wait for it."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def descend(levels: int) -> None:
    if levels:
        descend(levels - 1)
    else:
        Path(sys.argv[1], "ready-0").touch()
        time.sleep(300)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        sys.setrecursionlimit(10_000)
        descend(3_000)  # py-spy reads 4,096 at most
    Path(sys.argv[1], f"ready-{rank}").touch()
    dist.all_reduce(torch.zeros(8))
    dist.destroy_process_group()


main()
