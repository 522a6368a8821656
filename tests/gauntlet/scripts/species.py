"""Classifies species; after each step the accuracy of every class is summed over ranks."""

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


CLASSES = 40


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(3840, 64), torch.randint(0, CLASSES, (3840,)))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            output = model(x)
            optimizer.zero_grad()
            F.cross_entropy(output, y).backward()
            optimizer.step()
            right = output.argmax(1) == y
            totals = []
            for species in range(CLASSES):
                total = right[y == species].sum()
                dist.all_reduce(total)
                totals.append(int(total))
            if rank == 0 and step % 20 == 0:
                print(epoch, step, sum(totals))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
