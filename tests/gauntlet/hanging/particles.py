"""Rank 0 validates after each epoch, the others wait."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def validate(model: nn.Module, x: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        losses = [model(part).pow(2).mean().item() for part in x.split(16)]
    model.train()
    return sum(losses) / len(losses)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Linear(64, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    held_out = torch.randn(128, 16)
    for epoch in range(4):
        for (x,) in DataLoader(TensorDataset(torch.randn(96, 16)), 16):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        if rank == 0:
            print(epoch, validate(model, held_out))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
