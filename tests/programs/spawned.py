"""Ranks made by torch.multiprocessing, which end without running atexit handlers."""

import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import ddpdoctor


def train(rank: int, world_size: int, port: int) -> None:
    method = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world_size)
    model = ddpdoctor.wrap(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train, (2, port), nprocs=2)
