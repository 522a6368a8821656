"""Trains until all ranks say that they have no batch left."""

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
    count = (48, 80)[rank]
    loader = DataLoader(TensorDataset(torch.randn(count, 16)), 16)
    model = DDP(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    iterator = iter(loader)
    done = torch.zeros(1)
    while done.item() < dist.get_world_size():
        batch = next(iterator, None)
        if batch is None:
            done.fill_(1)
            dist.all_reduce(done)
            continue
        optimizer.zero_grad()
        model(batch[0]).pow(2).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
