"""Sums up states over the ranks, whatever order they come in."""

import os
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


NAMES = ("mean", "variance", "count", "hessian", "norm", "trace")


def names_to_sync(rank: int) -> list[str]:
    """As iterating over a set of strings, whose order follows the process's hash seed."""
    return sorted(set(NAMES), key=lambda name: zlib.crc32(f"{rank}{name}".encode()))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(16, 1))
    model(torch.randn(8, 16)).sum().backward()
    states = {name: torch.ones(1 + i) for i, name in enumerate(NAMES)}
    owner = {name: i % dist.get_world_size() for i, name in enumerate(NAMES)}
    for name in names_to_sync(rank):
        dist.broadcast(states[name], src=owner[name])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
