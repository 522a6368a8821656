"""Trains on fixed features with a block that is used several times, saving activation memory."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(64, 64).requires_grad_(False)
        self.block = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
        self.outlet = nn.Linear(64, 10)

    def forward(self, x):
        x = self.inlet(x).requires_grad_()
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=True)
        return self.outlet(x)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(1280, 64), torch.randint(0, 10, (1280,)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(Tied())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
