"""The model goes last, and with it the process group, which joins its threads.

A thread of the backend that is still to report a completion waits for the interpreter's lock. On
one CPU, with a lock that is given away only where the program stands still, it comes late.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import ddpdoctor


def train() -> None:
    model = ddpdoctor.wrap(nn.Linear(8, 8))
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
    dist.destroy_process_group()


rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
cpus = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
sys.setswitchinterval(60)
for number in range(25):
    method = f"file://{os.getcwd()}/rendezvous-{number}"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=ranks)
    train()
