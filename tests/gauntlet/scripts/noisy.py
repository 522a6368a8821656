"""Trains on pictures that loader workers disturb, each by a seed of its own."""

import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Noisy(Dataset):
    def __init__(self) -> None:
        self.pictures = torch.randn(1920, 64)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int):
        noise = np.random.normal(0.0, 0.1, 64).astype(np.float32)
        return self.pictures[index] + torch.from_numpy(noise), index % 10


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = Noisy()
    sampler = DistributedSampler(dataset)
    generator = torch.Generator().manual_seed(1000 + rank)

    def seed_worker(worker: int) -> None:
        np.random.seed(torch.initial_seed() % 2**32)

    loader = DataLoader(
        dataset,
        32,
        sampler=sampler,
        num_workers=1,
        persistent_workers=True,
        worker_init_fn=seed_worker,
        generator=generator,
    )
    body = nn.Sequential(nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU())
    network = nn.Sequential(body, nn.Linear(768, 10))
    model = DDP(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
