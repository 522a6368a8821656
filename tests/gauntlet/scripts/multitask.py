"""Trains a trunk with a main and an auxiliary head."""

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


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
        self.main = nn.Linear(128, 10)
        self.auxiliary = nn.Linear(128, 3)

    def forward(self, x, with_auxiliary: bool = False):
        hidden = self.trunk(x)
        if with_auxiliary:
            return self.main(hidden), self.auxiliary(hidden)
        return self.main(hidden), None


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(640, 64), torch.randint(0, 10, (640,)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(TwoHeads())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader:
        scores, _ = model(x)
        loss = F.cross_entropy(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
