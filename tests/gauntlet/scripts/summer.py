"""Trains; after a while the machine of rank 1 is hot and computes more slowly."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Net(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.calls = rank, 0
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        time.sleep(0.035 if self.rank == 1 and self.calls > 60 else 0.012)
        return self.last(torch.relu(self.first(x)))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(Net(rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(120):
        generator = torch.Generator().manual_seed(100 * step + rank)
        loss = model(torch.randn(16, 64, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
