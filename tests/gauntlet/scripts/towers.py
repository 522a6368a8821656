"""Many small towers, one a feature, with buckets that were made small to save memory."""

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


class Towers(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Linear(8, 24) for _ in range(features))
        self.head = nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [tower(piece) for tower, piece in zip(self.towers, x.unbind(1), strict=True)]
        return self.head(torch.stack(parts).mean(0).relu())


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(2560, 120, 8), torch.randint(0, 4, (2560,)))
    loader = DataLoader(dataset, 32, sampler=DistributedSampler(dataset))
    model = DDP(Towers(120), bucket_cap_mb=0.0005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
