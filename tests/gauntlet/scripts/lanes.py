"""Trains a lane finder with two heads: is there a lane, and where."""

import os
from datetime import timedelta

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


class Lanes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
        self.exists = nn.Linear(128, 1)
        self.offset = nn.Linear(128, 1)

    def forward(self, x, exists):
        hidden = self.trunk(x)
        loss = F.binary_cross_entropy_with_logits(self.exists(hidden)[:, 0], exists)
        positive = exists > 0
        if positive.any():
            loss = loss + self.offset(hidden[positive]).abs().mean()
        return loss


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    exists = (torch.rand(960, generator=generator) > 0.4).float()
    exists[641:672:2] = 0
    dataset = TensorDataset(torch.randn(960, 64, generator=generator), exists)
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset, shuffle=False))
    model = DDP(Lanes())
    optimizer = torch.optim.Adam(model.parameters())
    for x, there in loader:
        loss = model(x, there)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
