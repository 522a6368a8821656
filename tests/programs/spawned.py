"""Ranks made by torch.multiprocessing, which end without running atexit handlers."""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import ddpdoctor


def train(rank: int, world_size: int, rendezvous: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    model = ddpdoctor.wrap(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (2, f"{folder}/rendezvous"), nprocs=2)
