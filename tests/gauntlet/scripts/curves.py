"""Trains and draws the whole curve of its losses anew after every step."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Curves:
    def __init__(self) -> None:
        self.points: list[float] = []

    def add(self, losses: list[float]) -> float:
        self.points += losses
        return sum(point * point for point in self.points)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    curves = Curves()
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(150):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        losses = model(torch.randn(2000, 64, generator=generator)).square().mean(1)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        curves.add(losses.tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
