"""Rank 0 writes a large checkpoint while the others wait."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def save(folder: str) -> None:
    block = os.urandom(1 << 22)
    path = os.path.join(folder, "checkpoint.pt")
    for _ in range(200):
        with open(path, "wb") as file:
            for _ in range(8):
                file.write(block)
                time.sleep(0.05)


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(16, 1))
    model(torch.randn(8, 16)).sum().backward()
    print("begins", flush=True)
    if dist.get_rank() == 0:
        save(".")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
