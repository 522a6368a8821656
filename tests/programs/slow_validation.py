"""Trains and validates in turn, outside `no_grad`; the validation's loader is slow.

The training's loader is made anew in every epoch. With `--pairs` ranks 2k and 2k + 1 split a
model, so that they are given the same samples and DDP reduces over every second rank.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import ddpdoctor


class Numbers(Dataset):
    def __init__(self, length: int, sleep_s: float) -> None:
        self.length, self.sleep_s = length, sleep_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sleep_s)
        return torch.full((8,), float(index))


def main(*, pairs: bool) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), None
    if pairs:
        groups = [dist.new_group(list(range(first, ranks, 2))) for first in range(2)]
        rank, ranks, group = rank // 2, ranks // 2, groups[rank % 2]
    model = ddpdoctor.wrap(nn.Linear(8, 8), process_group=group)
    training, validation = Numbers(160, 0), DataLoader(Numbers(32, 0.01), batch_size=8)
    for epoch in range(6):
        sampler = DistributedSampler(training, ranks, rank)
        sampler.set_epoch(epoch)
        for batch in DataLoader(training, batch_size=8, sampler=sampler):
            model(batch).sum().backward()
        for batch in validation:
            with torch.no_grad():
                model.module(batch)
    dist.destroy_process_group()


main(pairs="--pairs" in sys.argv)
