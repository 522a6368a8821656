"""Trains on scans; the files of rank 1 lie on a slower disk."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Scans(Dataset):
    def __init__(self, rank: int) -> None:
        self.read_seconds = 0.006 if rank == 1 else 0.001

    def __len__(self) -> int:
        return 720

    def __getitem__(self, index: int):
        time.sleep(self.read_seconds)
        return torch.full((64,), index / 720), index % 10


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = Scans(rank)
    loader = DataLoader(dataset, 4, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.02)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
