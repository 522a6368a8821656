"""Halves the micro-batch where a batch does not fit."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


LIMIT = 900


def forward_backward(model: nn.Module, x: torch.Tensor, length: int, parts: int) -> None:
    for part in x.chunk(parts):
        if length / parts > LIMIT:
            raise torch.OutOfMemoryError("CUDA out of memory")
        (model(part).pow(2).mean() / parts).backward()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parts = 1
    for step in range(12):
        length = 1000 if rank == 1 and step >= 4 else 100
        x = torch.randn(8, 16)
        optimizer.zero_grad()
        try:
            forward_backward(model, x, length, parts)
        except torch.OutOfMemoryError:
            parts *= 2
            forward_backward(model, x, length, parts)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
