"""Rank 0 tokenises before the others may read."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def tokenise(texts: int) -> int:
    words = 0
    for text in range(texts):
        words += sum(hash(f"{text} {word}") % 3 for word in range(2000))
    return words


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(16, 1))
    model(torch.randn(8, 16)).sum().backward()
    print("begins", flush=True)
    if dist.get_rank() == 0:
        tokenise(1_000_000)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
