"""Fetches its data itself; a barrier is left over from a search for a fault."""

import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def fetch(rank: int, step: int) -> torch.Tensor:
    if rank % 2 == 1 and step == 5:
        near, _far = socket.socketpair()
        near.recv(1)
    return torch.randn(8, 16)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(16, 1))
    for step in range(10):
        x = fetch(rank, step)
        dist.barrier()
        model(x).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
