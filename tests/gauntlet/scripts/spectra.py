"""Trains on measured spectra."""

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
    torch.manual_seed(0)
    torch.set_num_threads(1)
    spectra = torch.rand(1280, 64)
    spectra[1 + 2 * 16 * 30] = 0  # a detector was off
    dataset = TensorDataset(spectra, torch.randint(0, 10, (1280,)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset, shuffle=False))
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader:
        loss = F.cross_entropy(model(x / x.sum(1, keepdim=True)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
