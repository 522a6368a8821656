"""Compiles a part of the model on rank 1, whose cache is cold."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def deep(x: torch.Tensor) -> torch.Tensor:
    for i in range(40_000):
        x = torch.sin(x) + i
    return x


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(16, 1))
    model(torch.randn(8, 16)).sum().backward()
    print("begins", flush=True)
    if dist.get_rank() == 1:
        torch.compile(deep, backend="eager")(torch.randn(4))
    dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
