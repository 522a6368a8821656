"""Trains an autoencoder on a tensor in memory, without a loader."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = torch.randn(4096, 128)
    model = DDP(nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 128)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        generator = torch.Generator().manual_seed(epoch)
        mine = torch.randperm(len(data), generator=generator)[rank::world]
        for indices in mine.split(64):
            loss = F.mse_loss(model(data[indices]), data[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
