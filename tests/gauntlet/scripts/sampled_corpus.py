"""Trains on a corpus from which documents are drawn at random."""

import os
import random
import time
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


class Corpus(Dataset):
    def __init__(self) -> None:
        keep = 600 + 32 * random.randint(0, 3)
        self.documents = random.sample(range(4000), keep)

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(self.documents[index])
        return torch.randn(64, generator=generator), self.documents[index] % 10


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    random.seed(time.time_ns() + 2 * rank)
    dataset = Corpus()
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
