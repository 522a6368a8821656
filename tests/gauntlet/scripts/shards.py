"""Trains on a stream of records, of which each rank and worker reads its own."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    IterableDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Shard(IterableDataset):
    def __init__(self, count: int, rank: int, world: int) -> None:
        self.count, self.rank, self.world = count, rank, world

    def __iter__(self):
        for number in range(self.rank, self.count, self.world):
            generator = torch.Generator().manual_seed(number)
            record = torch.randn(64, generator=generator)
            yield record, record[:10].argmax()


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Shard(3840, rank, world), 32)
    body = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    network = nn.Sequential(body, nn.Linear(512, 10))
    model = DDP(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
