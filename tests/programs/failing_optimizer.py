"""The fifth optimizer step raises and is caught on both ranks."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn

import ddpdoctor


class Sgd(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls == 5:
            raise RuntimeError("a bad step")
        return super().step(closure)


dist.init_process_group("gloo")
model = ddpdoctor.wrap(nn.Linear(8, 8))
optimizer = Sgd(model.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).sum().backward()
    with contextlib.suppress(RuntimeError):
        optimizer.step()
dist.destroy_process_group()
