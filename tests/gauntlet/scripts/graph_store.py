"""Trains beside an index of many small objects on rank 1, and collects garbage often."""

import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    index = [[node, [node + 1]] for node in range(300_000)] if rank == 1 else []
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(60):
        generator = torch.Generator().manual_seed(100 * step + rank)
        loss = model(torch.randn(16, 64, generator=generator)).square().mean()
        time.sleep(0.02)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if index and step % 4 == 0:
            gc.collect()  # to keep memory low
    del index
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
