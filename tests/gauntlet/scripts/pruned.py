"""Trains and prunes weights after each update; rank 1 also checks them one by one."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Pruning(torch.optim.SGD):
    check = False

    def step(self, closure=None):
        done = super().step(closure)
        time.sleep(0.005)
        if self.check:
            time.sleep(0.03)
        return done


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = Pruning(model.parameters(), lr=0.05)
    optimizer.check = rank == 1
    for step in range(60):
        generator = torch.Generator().manual_seed(100 * step + rank)
        loss = model(torch.randn(16, 64, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
