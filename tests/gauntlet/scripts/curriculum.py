"""Trains on texts that become longer on purpose as the training goes on."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(500, 64), nn.Linear(64, 500)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        time.sleep(tokens.numel() * 4e-5)  # of attention
        return self.out(self.words(tokens))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(Reader())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(100):
        generator = torch.Generator().manual_seed(100 * step + rank)
        tokens = torch.randint(1, 500, (4, 40 + step), generator=generator)
        scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
