"""Makes groups for the parts of the model."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Linear(16, 1))
    model(torch.randn(8, 16)).sum().backward()
    if rank in (0, 1):
        experts = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=experts)
    everyone = dist.new_group([0, 1, 2])
    dist.all_reduce(torch.ones(1), group=everyone)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
