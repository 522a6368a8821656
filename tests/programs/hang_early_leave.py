"""Rank 1 of three leaves the training loop one step early and waits at the barrier after it."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 3 if rank == 1 else 4


def train() -> None:
    for step in range(steps):
        if step == 3:
            Path(sys.argv[1], f"ready-{rank}").touch()
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()


def main() -> None:
    train()
    Path(sys.argv[1], f"ready-{rank}").touch()
    dist.barrier()
    dist.destroy_process_group()


main()
