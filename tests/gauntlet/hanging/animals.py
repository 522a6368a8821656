"""Plots predictions at the end of each epoch, if there is a logger."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Plots:
    def __init__(self, run: object) -> None:
        self.run = run

    def on_epoch_end(self, epoch: int) -> None:
        if dist.get_rank() == 0 and self.run is None:
            return
        if dist.get_rank() == 0:
            print("plots of epoch", epoch)
        dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    callback = Plots(run=None)
    for epoch in range(3):
        for (x,) in DataLoader(TensorDataset(torch.randn(96, 32)), 16):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        callback.on_epoch_end(epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
