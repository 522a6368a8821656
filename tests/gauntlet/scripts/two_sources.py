"""Trains on labelled and unlabelled samples from two loaders."""

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


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    labelled = TensorDataset(torch.randn(1920, 64), torch.randint(0, 10, (1920,)))
    unlabelled = TensorDataset(torch.randn(3840, 64))
    one = DataLoader(labelled, 32, sampler=DistributedSampler(labelled, seed=1))
    two = DataLoader(unlabelled, 64, sampler=DistributedSampler(unlabelled, seed=2))
    model = DDP(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        one.sampler.set_epoch(epoch)
        two.sampler.set_epoch(epoch)
        for (x, y), (u,) in zip(one, two, strict=True):
            scores, others = model(torch.cat([x, u])).split([len(x), len(u)])
            entropy = -(others.softmax(1) * others.log_softmax(1)).sum(1).mean()
            loss = F.cross_entropy(scores, y) + 0.1 * entropy
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
