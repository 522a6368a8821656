"""Trains on the files that a manifest lists."""

import os
import random

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


class Files(Dataset):
    def __init__(self) -> None:
        self.names = [f"clip-{number:04}.wav" for number in range(640)]
        random.shuffle(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int):
        number = int(self.names[index][5:9])
        generator = torch.Generator().manual_seed(number)
        return torch.randn(64, generator=generator), number % 10


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = Files()
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
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
