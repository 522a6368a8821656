"""Starts the experiment tracker on rank 0."""

import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class wandb:
    @staticmethod
    def init(project: str) -> None:
        print("connecting for", project)
        near, _far = socket.socketpair()
        near.recv(1)


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(16, 1))
    model(torch.randn(8, 16)).sum().backward()
    if dist.get_rank() == 0:
        wandb.init(project="legs")
    dist.barrier()
    model(torch.randn(8, 16)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
