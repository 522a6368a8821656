"""Rank 1 is killed; the others wait for a key in the store that only rank 1 would have set."""

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    Path(sys.argv[1], f"ready-{rank}").touch()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    store.get("settings of rank 1")
    dist.destroy_process_group()


main()
