"""Trains a network with batch norm, whose statistics are made anew before evaluation."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import update_bn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def network():
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))


@torch.no_grad()
def accuracy(model, loader) -> float:
    model.eval()
    right = [(model(x).argmax(1) == y).float().mean().item() for x, y in loader]
    model.train()
    return sum(right) / len(right)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(640, 64) * 3, torch.randint(0, 10, (640,)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        update_bn(loader, model.module)
        print(epoch, accuracy(model.module, loader))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
