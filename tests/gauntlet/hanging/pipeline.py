"""Two stages swap their borders."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def exchange(border: torch.Tensor, peer: int) -> torch.Tensor:
    received = torch.empty_like(border)
    dist.send(border, peer)
    dist.recv(received, peer)
    return received


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(16, 1))
    model(torch.randn(8, 16)).sum().backward()
    exchange(torch.ones(4_000_000), 1 - rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
