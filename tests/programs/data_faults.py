"""Trains on one loader after the other, each with a fault of its own, or with none (`--healthy`).

Each function is one loader: it iterates it on a line of its own, so that findings name it.
"""

import random
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

import ddpdoctor

HEALTHY = "--healthy" in sys.argv
EPOCHS = 3


class Numbers(Dataset):
    """Vectors that hold their item; with `augmented` some noise is added, drawn when loaded."""

    def __init__(self, items: list[int], *, augmented: bool = False) -> None:
        self.items, self.augmented = items, augmented

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> torch.Tensor:
        item = torch.full((8,), float(self.items[index]))
        return item + torch.rand(8) if self.augmented else item


class Stream(IterableDataset):
    """Items of a stream, split between ranks and workers as far as it is told to."""

    def __init__(self, length: int, *, by_rank: bool, by_worker: bool) -> None:
        self.length, self.by_rank, self.by_worker = length, by_rank, by_worker
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def __iter__(self) -> Iterator[torch.Tensor]:
        first, step = (self.rank, self.ranks) if self.by_rank else (0, 1)
        worker = get_worker_info()
        if worker is not None and self.by_worker:
            first, step = first + step * worker.id, step * worker.num_workers
        for item in range(first, self.length, step):
            yield torch.full((8,), float(item))


class Job:
    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.model = ddpdoctor.wrap(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-6)

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(batch / 1000).sum().backward()
        self.optimizer.step()

    def wrong_rank(self) -> None:
        data = Numbers(list(range(160)))
        rank = self.rank if HEALTHY else 0
        sampler = DistributedSampler(data, self.ranks, rank)
        for batch in DataLoader(data, 8, sampler=sampler):
            self.step(batch)

    def wrong_seed(self) -> None:
        data = Numbers(list(range(176)))
        sampler = DistributedSampler(data, seed=0 if HEALTHY else self.rank)
        for batch in DataLoader(data, 8, sampler=sampler):
            self.step(batch)

    def same_order(self) -> None:
        data = Numbers(list(range(192)))
        sampler = DistributedSampler(data)
        for epoch in range(EPOCHS):
            if HEALTHY:
                sampler.set_epoch(epoch)
            for batch in DataLoader(data, 8, sampler=sampler):
                self.step(batch)

    def stream_for_all(self) -> None:
        for batch in DataLoader(Stream(208, by_rank=HEALTHY, by_worker=True), 8):
            self.step(batch)

    def stream_for_all_workers(self) -> None:
        for batch in DataLoader(Stream(224, by_rank=True, by_worker=HEALTHY), 7, num_workers=2):
            self.step(batch)

    def other_order(self) -> None:
        items = list(range(240))
        random.Random(0 if HEALTHY else self.rank).shuffle(items)
        data = Numbers(items)
        sampler = DistributedSampler(data)
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for batch in DataLoader(data, 8, sampler=sampler):
                self.step(batch)

    def other_length(self) -> None:
        """As many batches, so that nothing hangs."""
        data = Numbers(list(range(256 + 2 * self.rank * (not HEALTHY))))
        for batch in DataLoader(data, 8, sampler=DistributedSampler(data), drop_last=True):
            self.step(batch)

    def same_augmentation(self) -> None:
        torch.manual_seed(self.rank if HEALTHY else 0)
        data = Numbers(list(range(272)), augmented=True)
        for batch in DataLoader(data, 8, sampler=DistributedSampler(data)):
            self.step(batch)

    def same_augmentation_by_workers(self) -> None:
        torch.manual_seed(self.rank if HEALTHY else 0)
        data = Numbers(list(range(288)), augmented=True)
        sampler = DistributedSampler(data)
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for batch in DataLoader(data, 8, sampler=sampler, num_workers=1):
                self.step(batch)

    def own_items(self, batches: int) -> Numbers:
        """Data of this rank alone."""
        first = 1000 * (self.rank + 1)
        return Numbers(list(range(first, first + 8 * batches)))

    def uneven_but_joined(self) -> None:
        """Fine with `join`."""
        with self.model.join():
            for batch in DataLoader(self.own_items(5 + self.rank), 8):
                self.step(batch)

    def uneven_but_cut(self) -> None:
        """Fine, since all ranks stop where the shortest ends."""
        for count, batch in enumerate(DataLoader(self.own_items(9 + self.rank), 8)):
            if count < 9:
                self.step(batch)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank() if HEALTHY else 0)
    job = Job()
    job.wrong_rank()
    job.wrong_seed()
    job.same_order()
    job.stream_for_all()
    job.stream_for_all_workers()
    job.other_order()
    job.other_length()
    job.same_augmentation()
    job.same_augmentation_by_workers()
    if HEALTHY:
        job.uneven_but_cut()
        job.uneven_but_joined()
    dist.destroy_process_group()


main()
