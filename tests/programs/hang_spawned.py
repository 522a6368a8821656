"""Ranks of mp.spawn, without any torchrun environment; rank 1 skips an all-reduce and waits."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def save_checkpoint() -> None:
    time.sleep(300)


def work(rank: int, world_size: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
    )
    Path(folder, f"ready-{rank}").touch()
    if rank == 1:
        save_checkpoint()
    dist.all_reduce(torch.zeros(8))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.pop("RANK", None)
    mp.spawn(work, args=(2, sys.argv[1]), nprocs=2)
