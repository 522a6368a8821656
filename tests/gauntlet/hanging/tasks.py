"""Takes its rank from the scheduler."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def main() -> None:
    rank = int(os.environ.get("SLURM_PROCID", "0"))
    dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    model = DDP(nn.Linear(16, 1))
    model(torch.randn(8, 16)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
