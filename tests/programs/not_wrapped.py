"""Trains in a process group without DDP; with `reduces` it averages its gradients itself."""

import sys

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    if "reduces" in sys.argv:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
