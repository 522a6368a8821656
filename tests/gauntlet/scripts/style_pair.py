"""Trains an encoder on pairs of views; its features are scaled by a running spread."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x):
        return self.body(x) * self.scale


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(640, 64))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(Scaled())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for (x,) in loader:
        one, two = model(x), model(x.flip(1))
        with torch.no_grad():
            model.module.scale.lerp_(1 / (one.std(0) + 0.1), 0.1)
        loss = (one - two).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
