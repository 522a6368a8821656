"""Rank 1 has 4 batches fewer than rank 0, each from data of its own, and then waits."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import ddpdoctor

BATCHES = (64, 60)
STEP_S = 0.05


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = ddpdoctor.wrap(nn.Linear(8, 8))
    data = torch.rand(8 * BATCHES[rank], 8)
    for batch in DataLoader(data, batch_size=8):
        model(batch).sum().backward()
        time.sleep(STEP_S)
    time.sleep(300)


main()
