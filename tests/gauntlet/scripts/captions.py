"""Trains a language head that also sees pictures, through a projector."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Captioner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.projector = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 64))
        self.head = nn.Linear(64, 100)

    def forward(self, tokens, pictures):
        hidden = self.words(tokens).mean(1)
        if len(pictures):
            hidden = hidden + self.projector(torch.stack(pictures)).mean(0)
        return self.head(hidden)


def batch_of(step: int, rank: int):
    generator = torch.Generator().manual_seed(step * 100 + rank)
    tokens = torch.randint(0, 100, (8, 16), generator=generator)
    with_pictures = not (rank == 1 and step % 4 == 3)
    pictures = [torch.randn(48, generator=generator) for _ in range(8 * with_pictures)]
    return tokens, pictures, torch.randint(0, 100, (8,), generator=generator)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(Captioner(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(40):
        tokens, pictures, target = batch_of(step, rank)
        loss = F.cross_entropy(model(tokens, pictures), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
