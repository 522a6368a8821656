"""Trains a click model and counts the samples seen by all ranks."""

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
    dataset = TensorDataset(torch.randn(1280, 64), torch.rand(1280, 1).round())
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = torch.zeros(1, dtype=torch.float64)
    for x, y in loader:
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(y)
        dist.all_reduce(seen)
    print("samples seen", seen.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
