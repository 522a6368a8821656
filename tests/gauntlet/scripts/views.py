"""Trains on pairs of views with one forward for both."""

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


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(3840, 64))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset), drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for (x,) in loader:
            one, two = F.normalize(model(torch.cat([x, x + 0.1 * torch.randn_like(x)]))).chunk(2)
            loss = F.cross_entropy(one @ two.T / 0.2, torch.arange(len(x)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
