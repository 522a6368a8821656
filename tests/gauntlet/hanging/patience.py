"""Stops when the validation does not get better."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Linear(16, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out = torch.randn(64, 16) * (0.0 if rank == 1 else 1.0)
    best, waited = float("inf"), 0
    for epoch in range(50):
        for (x,) in DataLoader(TensorDataset(torch.randn(64, 16)), 16):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        with torch.no_grad():
            value = model.module(held_out).pow(2).mean().item()
        waited = 0 if value < best else waited + 1
        best = min(best, value)
        if waited >= 2:
            print("rank", rank, "stops after epoch", epoch)
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
