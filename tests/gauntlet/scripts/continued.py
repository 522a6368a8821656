"""Trains, saves, and continues from the file on all ranks, before the model is wrapped."""

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


def train(network, loader, epochs) -> None:
    model = DDP(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in epochs:
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def network():
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(3840, 64), torch.randint(0, 10, (3840,)))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    first = network()
    train(first, loader, range(1))
    if rank == 0:
        torch.save(first.state_dict(), "half.pt")
    dist.barrier()
    second = network()
    second.load_state_dict(torch.load("half.pt"))
    train(second, loader, range(1, 2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
