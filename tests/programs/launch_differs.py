"""Rank 1 was started with another variable; training goes on until rank 0 was warned of it."""

import logging
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import ddpdoctor

SECONDS = 40.0
warnings: list[str] = []


class Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warnings.append(record.getMessage())


logging.getLogger("ddpdoctor").addHandler(Keep())
if os.environ["RANK"] == "1":
    os.environ["NCCL_DEBUG"] = "INFO"
dist.init_process_group("gloo")
model = ddpdoctor.wrap(nn.Linear(8, 8))
began = time.monotonic()
ends = torch.zeros(1)
while not ends.item():
    model(torch.ones(2, 8)).sum().backward()
    ends.fill_(float(bool(warnings) or time.monotonic() - began > SECONDS))
    dist.all_reduce(ends)
    time.sleep(0.02)
for warning in warnings:
    sys.stdout.write(f"rank {dist.get_rank()} was warned while training: {warning}\n")
dist.destroy_process_group()
