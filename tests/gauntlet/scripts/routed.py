"""Trains two experts; which of them a step uses is the same on all ranks."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(64, 256)
        self.experts = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))
        self.outlet = nn.Linear(256, 10)

    def forward(self, x, expert: int):
        return self.outlet(F.relu(self.experts[expert](F.relu(self.inlet(x)))))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    choice = random.Random(11)
    dataset = TensorDataset(torch.randn(3840, 64), torch.randint(0, 10, (3840,)))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    model = DDP(Routed(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x, choice.randrange(2)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
