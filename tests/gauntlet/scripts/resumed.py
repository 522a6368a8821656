"""Trains in two parts; the sampler goes on where the first part stopped."""

import json
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    Sampler,
    TensorDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class GoingOn(Sampler):
    def __init__(self, size: int, rank: int, world: int) -> None:
        self.mine = range(rank, size, world)
        self.start = 0

    def __iter__(self):
        return iter(self.mine[self.start :])

    def __len__(self) -> int:
        return len(self.mine) - self.start


def train(model, optimizer, loader, steps: int) -> None:
    for step, (x, y) in enumerate(loader, 1):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == steps:
            break


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    saved = Path(f"sampler-{rank}.json")
    dataset = TensorDataset(torch.randn(960, 64), torch.randint(0, 10, (960,)))
    sampler = GoingOn(len(dataset), rank, world)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer, DataLoader(dataset, 8, sampler=sampler), steps=16)
    if rank == 0:
        saved.write_text(json.dumps({"start": 16 * 8}))
    dist.barrier()
    if saved.exists():
        sampler.start = json.loads(saved.read_text())["start"]
    train(model, optimizer, DataLoader(dataset, 8, sampler=sampler), steps=1000)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
