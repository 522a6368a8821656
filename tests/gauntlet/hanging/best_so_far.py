"""Keeps the best model, by the validation of each rank."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def validate(model: nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        return -model.module(x).pow(2).mean().item()


def save_best(epoch: int, value: float) -> None:
    name = [f"best-{epoch}-{value:.3f}.pt" if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name, src=0)
    print("rank", dist.get_rank(), "keeps", name[0])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held_out = torch.randn(128, 16) + (1.0 if rank == 1 else 0.0)
    best = float("-inf") if rank != 1 else 0.0
    for epoch in range(6):
        for (x,) in DataLoader(TensorDataset(torch.randn(96, 16)), 16):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        value = validate(model, held_out)
        if value > best:
            best = value
            save_best(epoch, value)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
