"""Scores are gathered as objects, as in a log of each step, but once an epoch."""

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


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(3840, 96), torch.rand(3840, 1))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(96, 512), nn.ReLU(), nn.Linear(512, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        scores = []
        for x, y in loader:
            score = model(x)
            optimizer.zero_grad()
            F.mse_loss(score, y).backward()
            optimizer.step()
            scores += score.flatten().tolist()
        gathered = [None] * world
        dist.all_gather_object(gathered, scores)
        if rank == 0:
            print(epoch, sum(map(len, gathered)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
