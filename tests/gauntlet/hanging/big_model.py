"""A step takes seconds of work on each rank."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    layers = [nn.Linear(2048, 2048) for _ in range(4)]
    model = DDP(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    print("begins", flush=True)
    for _ in range(100):
        optimizer.zero_grad()
        model(torch.randn(2048, 2048)).pow(2).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
