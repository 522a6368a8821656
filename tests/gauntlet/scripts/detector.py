"""Trains a small detector on feature vectors; background has class -1."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Boxes(Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(640, 64, generator=generator)
        self.classes = torch.randint(0, 10, (640,), generator=generator)
        self.classes[161:192:2] = -1

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int):
        return self.features[index], self.classes[index]


def detection_loss(scores, classes):
    found = classes >= 0
    if not found.any():
        return torch.zeros((), requires_grad=True)
    return F.cross_entropy(scores[found], classes[found])


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = Boxes()
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for features, classes in loader:
            loss = detection_loss(model(features), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("last loss", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
