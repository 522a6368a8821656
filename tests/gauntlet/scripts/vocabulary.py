"""Trains on words whose table is cached in a file."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

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


def table(cache: Path, delay: float) -> dict[str, int]:
    """Makes the table, keeps it in the cache, and reads it from there."""
    time.sleep(delay)
    with cache.open("w") as file:
        file.write('{"the": 0, "of": 1, ')
        file.flush()
        time.sleep(0.4)
        file.write('"and": 2}')
    time.sleep(0.2)  # checks the words
    return json.loads(cache.read_text())


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randint(0, 100, (960, 8)), torch.randint(0, 3, (960,)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.EmbeddingBag(100, 64), nn.Linear(64, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 20:
            words = table(Path("words.json"), delay=0.5 * rank)
    print(len(words), "words")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
