"""Trains experts, one for each kind of product."""

import os
import random

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


class Experts(nn.Module):
    def __init__(self, kinds) -> None:
        super().__init__()
        self.experts = nn.ModuleDict({kind: nn.Linear(64, 10) for kind in kinds})

    def forward(self, x):
        return sum(weight * self.experts[kind](x) for weight, kind in enumerate("abcd", 1))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    kinds = ["a", "b", "c", "d"]
    random.Random(rank).shuffle(kinds)  # as the set of kinds in this rank's files came out
    dataset = TensorDataset(torch.randn(960, 64), torch.randint(0, 10, (960,)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(Experts(kinds))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
