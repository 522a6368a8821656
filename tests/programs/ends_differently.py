"""Ranks train by themselves, and each ends in its own way after the same number of steps.

The arguments are the ways, one a rank. `SIGTERM` and the like are sent by the rank to itself,
`handled-SIGTERM` sets a handler of its own first, and `goes-on` waits for the others in vain.
"""

import os
import signal
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn

import ddpdoctor

STEPS = 7


def end(way: str) -> None:
    if way == "exception":
        raise ValueError("no label 11 at https://me:abc123@host, asked with api_token=abc123")
    if way == "exit":
        sys.exit(3)
    if way == "os._exit":
        os._exit(4)
    if way == "goes-on":
        dist.all_reduce(torch.ones(1))
    if way.startswith("SIG"):
        signal.raise_signal(signal.Signals[way])
        signal.pause()


def fail_in_a_thread() -> None:
    thread = threading.Thread(target=lambda: 1 / 0, name="uploader")
    thread.start()
    thread.join()


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    ways = sys.argv[1:]
    way = ways[dist.get_rank()]
    if way == "handled-SIGTERM":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
        way = "SIGTERM"
    alone = [dist.new_group([rank]) for rank in range(len(ways))][dist.get_rank()]
    model = ddpdoctor.wrap(nn.Linear(8, 8), process_group=alone)
    train(model)
    if way == "returned":
        fail_in_a_thread()
    dist.barrier()
    model(torch.ones(2, 8))
    end(way)


main()
