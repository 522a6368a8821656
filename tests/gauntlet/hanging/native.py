"""Calls a library from rank 1."""

import ctypes
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def simulate() -> None:
    ctypes.PyDLL(None).sleep(600)


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(16, 1))
    for step in range(10):
        if step == 5 and dist.get_rank() == 1:
            simulate()
        model(torch.randn(8, 16)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
