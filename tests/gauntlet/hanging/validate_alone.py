"""Rank 0 validates alone, and takes its time."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def validate(model: nn.Module) -> float:
    total = 0.0
    with torch.no_grad():
        for _ in range(1_000_000):
            total += model(torch.randn(512, 256)).mean().item()
    return total


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = DDP(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)))
    model(torch.randn(8, 256)).sum().backward()
    print("begins", flush=True)
    if dist.get_rank() == 0:
        validate(model.module)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
