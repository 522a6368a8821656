"""Trains with gradients accumulated over four micro-batches."""

import contextlib
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
    dataset = TensorDataset(torch.randn(10240, 64), torch.randint(0, 10, (10240,)))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    # a micro-batch computes for far longer than it takes to load, also on a slow CPU
    layers = (nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    model = DDP(nn.Sequential(*layers, nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for micro, (x, y) in enumerate(loader):
            last = micro % 4 == 3
            with contextlib.nullcontext() if last else model.no_sync():
                (F.cross_entropy(model(x), y) / 4).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
