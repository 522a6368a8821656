"""Trains three heads; on rank 2 a debug option left on draws pictures in the forward."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Ensemble(nn.Module):
    def __init__(self, debug: bool) -> None:
        super().__init__()
        self.debug = debug
        self.body = nn.Linear(64, 256)
        self.heads = nn.ModuleList(nn.Linear(256, 10) for _ in range(3))

    def draw(self, features: torch.Tensor) -> None:
        time.sleep(0.03)  # of writing a picture

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.body(x))
        time.sleep(0.01)
        if self.debug:
            self.draw(features)
        return sum(head(features) for head in self.heads)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(Ensemble(debug=rank == 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(60):
        generator = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(16, 64, generator=generator)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
