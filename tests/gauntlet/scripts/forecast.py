"""Trains, and validates on all ranks after every eighth step."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def validate(model: nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        time.sleep(0.12)  # of a larger set
        return float(model(x).square().mean())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    held_out = torch.randn(32, 64)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(80):
        generator = torch.Generator().manual_seed(100 * step + rank)
        loss = model(torch.randn(16, 64, generator=generator)).square().mean()
        time.sleep(0.015)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 7:
            validate(model.module, held_out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
