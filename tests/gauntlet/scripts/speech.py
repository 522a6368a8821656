"""Trains a recogniser that computes its own loss."""

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


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.GRU(40, 64, batch_first=True)
        self.head = nn.Linear(64, 30)

    def forward(self, sound):
        return self.head(self.body(sound)[0])

    def loss(self, sound, letters):
        return F.cross_entropy(self(sound).flatten(0, 1), letters.flatten())


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(480, 20, 40), torch.randint(0, 30, (480, 20)))
    loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
    model = DDP(Recogniser())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for sound, letters in loader:
            loss = model.module.loss(sound, letters)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
