"""Fits a curve with LBFGS, whose steps evaluate the model several times."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.linspace(-3, 3, 2048)[rank::world, None]
    y = torch.sin(x) + 0.1 * x
    model = DDP(nn.Sequential(nn.Linear(1, 256), nn.Tanh(), nn.Linear(256, 1)))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        mean = loss.detach() / world
        dist.all_reduce(mean)  # every rank must take the same decisions
        return mean

    for _ in range(30):
        loss = optimizer.step(closure)
    print(loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
