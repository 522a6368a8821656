"""Logs the means of several losses over the ranks."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def log(values: dict[str, torch.Tensor]) -> dict[str, float]:
    logged = {}
    for key, value in values.items():
        total = value.detach().clone()
        dist.all_reduce(total)
        logged[key] = total.item() / dist.get_world_size()
    return logged


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(20):
        x = torch.randn(16, 16)
        out = model(x)
        losses = {"loss": out.pow(2).mean(), "loss_l1": out.abs().mean()}
        if step >= 5 and rank == 0:
            losses["loss_mask"] = out[:, 0].mean()
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
        log(losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
