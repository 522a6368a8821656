"""At step 10 rank 1 makes a collective that its backend refuses, and goes on."""

import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn

import ddpdoctor

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = ddpdoctor.wrap(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    if step == 10 and dist.get_rank() == 1:
        with contextlib.suppress(RuntimeError, ValueError):
            dist.all_gather([torch.ones(3), torch.ones(3)], torch.ones(2))
dist.destroy_process_group()
