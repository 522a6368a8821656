"""Trains with rare classes drawn more often, each rank from its own part."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    TensorDataset,
    WeightedRandomSampler,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = torch.randn(3840, 64), torch.randint(0, 10, (3840,))
    part = TensorDataset(x[rank::world], y[rank::world])
    weights = 1 / (1 + part.tensors[1].double())
    generator = torch.Generator().manual_seed(20 + rank)
    sampler = WeightedRandomSampler(weights, len(part), generator=generator)
    loader = DataLoader(part, 64, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
