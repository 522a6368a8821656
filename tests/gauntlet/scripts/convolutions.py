"""Trains a convolutional network with batch norm, evaluating after each epoch."""

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


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


@torch.no_grad()
def accuracy(model, loader) -> float:
    model.eval()
    counts = torch.zeros(2)
    for x, y in loader:
        counts += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    model.train()
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = TensorDataset(torch.randn(640, 3, 16, 16), torch.randint(0, 10, (640,)))
    held_out = TensorDataset(torch.randn(128, 3, 16, 16), torch.randint(0, 10, (128,)))
    loader = DataLoader(train, 16, sampler=DistributedSampler(train))
    held_out_loader = DataLoader(held_out, 16, sampler=DistributedSampler(held_out, shuffle=False))
    model = DDP(Convolutions())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(3):
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
