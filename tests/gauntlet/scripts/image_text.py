"""Trains two towers that must agree on pairs of picture and text."""

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


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(96, 64), nn.LayerNorm(64))
        self.text = nn.Sequential(nn.Linear(48, 64), nn.LayerNorm(64))
        self.log_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image, text):
        return F.normalize(self.image(image)), F.normalize(self.text(text))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(640, 96), torch.randn(640, 48))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(Towers(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for image, text in loader:
        images, texts = model(image, text)
        scores = model.module.log_scale.exp() * images @ texts.T
        loss = F.cross_entropy(scores, torch.arange(len(scores)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
