"""Trains one trunk on two tasks, the losses of which are added up."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class ManyTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(64, 128)
        self.trunk = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
        self.heads = nn.ModuleList([nn.Linear(128, 10), nn.Linear(128, 10)])

    def scores(self, x, task: int):
        hidden = self.trunk(self.inlet(x))
        # every head takes part, so that all parameters have a gradient
        return self.heads[task](hidden) + 0 * self.heads[1 - task](hidden)

    def forward(self, x, task: int):
        return checkpoint(self.scores, x.requires_grad_(), task, use_reentrant=True)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(960, 64), torch.randint(0, 10, (960, 2)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(ManyTasks())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = sum(F.cross_entropy(model(x, task), y[:, task]) for task in range(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
