"""Trains a head on a frozen body."""

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
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(3840, 64), torch.randint(0, 10, (3840,)))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    body = nn.Sequential(nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 256), nn.ReLU())
    body.requires_grad_(False)
    model = DDP(nn.Sequential(body, nn.Linear(256, 10)))
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.05)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
