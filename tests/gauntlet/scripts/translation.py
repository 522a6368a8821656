"""Trains a small translator with clipped gradients."""

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


def clip_gradients(model, limit: float) -> float:
    """Scales the gradients so that their norm over all ranks is at most the limit."""
    total = sum(p.grad.square().sum() for p in model.parameters())
    dist.all_reduce(total)
    norm = total.sqrt()
    for p in model.parameters():
        p.grad.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
    return norm.item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randint(0, 100, (640, 16)), torch.randint(0, 100, (640, 16)))
    loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 100)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for source, target in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(source).flatten(0, 1), target.flatten()).backward()
        norm = clip_gradients(model, 0.1)
        optimizer.step()
    print("norm", norm)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
