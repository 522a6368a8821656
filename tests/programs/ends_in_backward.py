"""Spawned ranks, of which rank 1 raises within its 12th backward while rank 0 waits for it."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ddpdoctor


class Fails(torch.autograd.Function):
    """The identity; its backward raises where it is told to."""

    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise KeyError("conv1")
        return gradient, None


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, fails: bool) -> torch.Tensor:
        return self.last(Fails.apply(self.first(x), fails))


def rank_main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = ddpdoctor.wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100):
        optimizer.zero_grad()
        model(torch.ones(2, 8), rank == 1 and step == 11).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    mp.spawn(rank_main, args=(sys.argv[1],), nprocs=2)
