"""Reads in step: all ranks meet after each batch, and sum up at the end of an epoch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Shard:
    """Indices of this rank; the last one gets what is left."""

    def __init__(self, samples: int, rank: int, world: int) -> None:
        each = -(-samples // world)
        self.indices = range(rank * each, min(samples, (rank + 1) * each))

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(34, 16))
    loader = DataLoader(dataset, 1, sampler=Shard(len(dataset), rank, world))
    model = DDP(nn.Linear(16, 4))
    model(torch.randn(4, 16)).sum().backward()
    read = torch.zeros(1)
    for (x,) in loader:
        read += x.numel()
        dist.barrier()
    dist.barrier()
    dist.all_reduce(read)
    if rank == 0:
        print("read", read.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
