"""Rank 1 of three stays in its evaluation; the others wait for it until their timeout ends them."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import ddpdoctor


def evaluate() -> None:
    time.sleep(60)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=7))
    model = ddpdoctor.wrap(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        if step == 12 and dist.get_rank() == 1:
            evaluate()
    dist.destroy_process_group()


main()
