"""Validates on rank 0, which knows how fit the model is."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def fitness(model: nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        return -model.module(x).pow(2).mean().item()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    held_out = torch.randn(64, 16)
    best, since, stop = float("-inf"), 0, False
    for _epoch in range(30):
        for (x,) in DataLoader(TensorDataset(torch.randn(64, 16)), 16):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        if rank == 0:
            value = fitness(model, held_out)
            since = 0 if value > best else since + 1
            best = max(best, value)
            stop = since >= 3
        if stop:
            break
    dist.barrier()
    if rank == 0:
        print("best", best)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
