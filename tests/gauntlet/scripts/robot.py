"""Trains a backbone and an action head, each in a module of its own."""

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


class ActionHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 7))

    def forward(self, hidden):
        return self.body(hidden)

    def predict(self, hidden):
        return torch.tanh(self.body(hidden))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(960, 64), torch.randn(960, 7))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    backbone = DDP(nn.Sequential(nn.Linear(64, 128), nn.ReLU()))
    action_head = DDP(ActionHead())
    parameters = [*backbone.parameters(), *action_head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    for x, y in loader:
        loss = F.l1_loss(action_head.module.predict(backbone(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
