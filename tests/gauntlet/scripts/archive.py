"""Trains on an archive that two loader workers unpack more slowly than it is used."""

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


class Archive(Dataset):
    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int):
        time.sleep(0.01)  # of unpacking
        return torch.full((64,), index / 640), index % 10


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = Archive()
    loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset), num_workers=2)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.01)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
