"""Logs the loss on rank 0."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def log(name: str, value: torch.Tensor) -> None:
    total = value.detach().clone()
    dist.all_reduce(total)
    print(name, total.item() / dist.get_world_size())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(50):
        loss = model(torch.randn(16, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24 and rank == 0:
            log("train/loss", loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
