"""Saves a checkpoint after some steps."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def save(model: nn.Module, step: int) -> None:
    if dist.get_rank() != 0:
        return
    with tempfile.TemporaryFile() as file:
        torch.save({"step": step, "model": model.module.state_dict()}, file)
    dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(40):
        x = torch.randn(16, 32)
        loss = F.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            save(model, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
