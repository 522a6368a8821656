"""Rank 0 is done but for a thread that waits for ever; rank 1 has ended."""

import sys
import threading
from pathlib import Path

import torch.distributed as dist


def upload() -> None:
    threading.Event().wait()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    if rank == 0:
        threading.Thread(target=upload, name="uploader").start()
    dist.destroy_process_group()
    Path(sys.argv[1], f"ready-{rank}").touch()


main()
