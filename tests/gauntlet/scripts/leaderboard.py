"""Trains, and evaluates ten held-out samples over all ranks."""

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


@torch.no_grad()
def accuracy(model, loader) -> float:
    model.eval()
    counts = torch.zeros(2)
    for x, y in loader:
        counts += torch.tensor([(model.module(x).argmax(1) == y).sum(), len(y)])
    model.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = TensorDataset(torch.randn(960, 64), torch.randint(0, 10, (960,)))
    held_out = TensorDataset(torch.randn(10, 64), torch.randint(0, 10, (10,)))
    loader = DataLoader(train, 16, sampler=DistributedSampler(train))
    held_out_loader = DataLoader(held_out, 2, sampler=DistributedSampler(held_out, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, accuracy(model, held_out_loader))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
