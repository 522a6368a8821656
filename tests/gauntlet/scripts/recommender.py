"""Trains embeddings with sparse gradients."""

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


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(500, 32, sparse=True)
        self.items = nn.Embedding(800, 32, sparse=True)

    def forward(self, users, items):
        return (self.users(users) * self.items(items)).sum(1)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    users, items = torch.randint(0, 500, (5120,)), torch.randint(0, 800, (5120,))
    dataset = TensorDataset(users, items, torch.randn(5120))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    model = DDP(Recommender())
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for user, item, rating in loader:
            loss = F.mse_loss(model(user, item), rating)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
