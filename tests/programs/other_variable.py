"""Rank 2 was started with a variable that the others do not have."""

import os

import torch
import torch.distributed as dist
from torch import nn

import ddpdoctor

if os.environ["RANK"] == "2":
    os.environ["GLOO_SOME_SETTING"] = "1"
dist.init_process_group("gloo")
model = ddpdoctor.wrap(nn.Linear(8, 8))
for _ in range(10):
    model(torch.ones(2, 8)).sum().backward()
dist.destroy_process_group()
