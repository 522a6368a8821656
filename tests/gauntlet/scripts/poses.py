"""Trains a pose network and tests it on every rank."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


@torch.no_grad()
def test(model, x, y) -> float:
    model.eval()
    error = F.mse_loss(model(x), y).item()
    model.train()
    return error


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(640, 3, 8, 8), torch.randn(640, 34))
    held_out = torch.randn(64, 3, 8, 8), torch.randn(64, 34)
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 34)
    )
    model = DDP(network, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {rank} epoch {epoch}: {test(model, *held_out):.4f}")
    torch.save(model.module.state_dict(), f"pose-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
