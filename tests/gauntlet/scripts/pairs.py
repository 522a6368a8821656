"""Trains an encoder by contrasting pairs over the whole batch of all ranks."""

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


def gathered(features):
    everyones = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, features)
    return torch.cat(everyones)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(960, 64))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset), drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(10 + rank)
    for (x,) in loader:
        views = torch.cat([x, x + 0.1 * torch.randn_like(x)])
        one, two = F.normalize(model(views)).chunk(2)
        one, two = gathered(one), gathered(two.contiguous())
        mine = F.normalize(model(x))
        scores = mine @ two.T / 0.2
        loss = F.cross_entropy(scores, torch.arange(len(mine)) + rank * len(mine))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
