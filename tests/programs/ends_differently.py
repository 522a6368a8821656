"""Four ranks train without needing each other, and each ends in its own way after some steps.

The way of each rank is an argument: how it ends, or `SIGTERM` and the like for a signal that it
sends itself. `handled-SIGTERM` sets a handler of its own first.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn

import ddpdoctor

STEPS = 7


def end(way: str) -> None:
    if way == "exception":
        raise ValueError("no such label: 11, asked with token=abc123secret")
    if way == "exit":
        sys.exit(3)
    if way == "os._exit":
        os._exit(4)
    if way.startswith("SIG"):
        signal.raise_signal(signal.Signals[way])
        signal.pause()


def main() -> None:
    dist.init_process_group("gloo")
    ways = sys.argv[1:]
    way = ways[dist.get_rank()]
    if way == "handled-SIGTERM":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
        way = "SIGTERM"
    alone = [dist.new_group([rank]) for rank in range(len(ways))][dist.get_rank()]
    model = ddpdoctor.wrap(nn.Linear(8, 8), process_group=alone)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    model(torch.ones(2, 8)).sum().backward()
    dist.barrier()
    end(way)


main()
