"""A deep residual network; the search for unused parameters was left on from an experiment."""

import os

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


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.one = nn.Linear(width, width)
        self.two = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(F.gelu(self.one(self.norm(x))))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(960, 16), torch.randint(0, 3, (960,)))
    loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
    blocks = [Block(16) for _ in range(150)]
    model = DDP(nn.Sequential(*blocks, nn.Linear(16, 3)), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    for epoch in range(1):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
