"""Rank 0 evaluates from time to time; reading data lets one rank write the cache first."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def load_and_cache(samples: int) -> DataLoader:
    if dist.get_rank() != 0:
        dist.barrier()
    data = TensorDataset(torch.randn(samples, 16))
    if dist.get_rank() == 0:
        dist.barrier()
    return DataLoader(data, 16)


def evaluate(model: nn.Module) -> float:
    with torch.no_grad():
        return sum(model.module(x).pow(2).mean().item() for (x,) in load_and_cache(64))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = load_and_cache(96)
    for epoch in range(4):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(epoch, evaluate(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
