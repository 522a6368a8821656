"""Trains on scans and measures each one afterwards."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def evaluate(model: nn.Module, scans: torch.Tensor) -> list[torch.Tensor]:
    scores = []
    for scan in scans:
        with torch.no_grad():
            score = model.module(scan).mean().reshape(1)
        gathered = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, score)
        scores += gathered
    return scores


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 16)), 16):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    held_out = torch.randn(3, 8, 16)
    scores = evaluate(model, held_out[rank::world])
    dist.barrier()
    if rank == 0:
        print("score", torch.stack(scores).mean())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
