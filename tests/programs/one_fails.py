"""Rank 1 is killed or fails, as the last argument says; the others lose their peer."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def load(index: int) -> None:
    raise ValueError(f"image {index} is broken")


@record
def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1 and sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if dist.get_rank() == 1:
        load(17)
    for _ in range(1000):
        dist.all_reduce(torch.zeros(8))
    dist.destroy_process_group()


main()
