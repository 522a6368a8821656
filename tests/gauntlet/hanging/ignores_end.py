"""Rank 1 fails; the others are in a library that does not let itself be ended."""

import ctypes
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(16, 1))
    model(torch.randn(8, 16)).sum().backward()
    if rank == 1:
        raise ValueError("label 17 is out of range")
    ctypes.CDLL(None).sleep(600)
    model(torch.randn(8, 16)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
