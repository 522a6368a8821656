"""Trains a generator against a discriminator."""

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


def network(inlet: int, outlet: int):
    return nn.Sequential(nn.Linear(inlet, 384), nn.LeakyReLU(0.2), nn.Linear(384, outlet))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(3840, 128))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    generator, discriminator = DDP(network(32, 128)), DDP(network(128, 1))
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    torch.manual_seed(100 + rank)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for (real,) in loader:
            fake = generator(torch.randn(len(real), 32))
            d_optimizer.zero_grad()
            scores = discriminator(torch.cat([real, fake.detach()]))
            truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
            F.binary_cross_entropy_with_logits(scores, truth).backward()
            d_optimizer.step()
            g_optimizer.zero_grad()
            F.softplus(-discriminator(fake)).mean().backward()
            g_optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
