"""A deep network whose normalisation layers share their statistics over the ranks."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class SharedNorm(nn.Module):
    """Batch statistics of all ranks, summed in each forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums = torch.cat([x.detach().sum(0), x.detach().square().sum(0)])
        dist.all_reduce(sums)
        count = x.shape[0] * dist.get_world_size()
        mean, square = (sums / count).chunk(2)
        spread = (square - mean.square()).clamp(min=1e-5).sqrt()
        return (x - mean) / spread * self.scale + self.shift


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(1920, 32), torch.randint(0, 5, (1920,)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    layers: list[nn.Module] = [nn.Linear(32, 64)]
    for _ in range(24):
        layers += [SharedNorm(64), nn.ReLU(), nn.Linear(64, 64)]
    model = DDP(nn.Sequential(*layers, nn.Linear(64, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
