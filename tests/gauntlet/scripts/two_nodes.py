"""Trains on two machines, of which the second is slower; their names are made up."""

import os
import socket
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def name_the_machine(rank: int) -> None:
    name = "node-a" if rank < 2 else "node-b"
    socket.gethostname = lambda: name


class Net(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.last(torch.relu(self.first(x)))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    name_the_machine(rank)
    slow = rank >= 2
    model = DDP(Net(0.035 if slow else 0.01))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(50):
        generator = torch.Generator().manual_seed(100 * step + rank)
        loss = model(torch.randn(16, 64, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.02 if slow else 0.006)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
