"""A rank that forks a child, which uses the model and a loader long after, and loader workers."""

import multiprocessing
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import ddpdoctor

STEPS = 20

dist.init_process_group("gloo")
model = ddpdoctor.wrap(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
fork = multiprocessing.get_context("fork")
trained = fork.Event()


def train(workers: int) -> None:
    loader = DataLoader(
        [torch.ones(4)] * STEPS,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    for x in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


def evaluate() -> None:
    trained.wait()
    for x in DataLoader([torch.ones(4)] * STEPS):
        with torch.no_grad():
            model(x)


train(workers=2)
child = fork.Process(target=evaluate)
child.start()
train(workers=0)
sys.stdout.write(f"trained until {time.monotonic_ns()}\n")
trained.set()
child.join()
sys.stdout.write(f"child ended with {child.exitcode}\n")
dist.destroy_process_group()
