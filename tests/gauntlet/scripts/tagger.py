"""Trains a recurrent network to tag words."""

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


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(300, 64)
        self.body = nn.LSTM(64, 96, batch_first=True, bidirectional=True)
        self.head = nn.Linear(192, 12)

    def forward(self, tokens):
        return self.head(self.body(self.words(tokens))[0])


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randint(0, 300, (960, 20)), torch.randint(0, 12, (960, 20)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for tokens, tags in loader:
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
