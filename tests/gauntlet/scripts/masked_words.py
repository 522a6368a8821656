"""Pretrains by guessing masked words."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 64)
        self.body = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 200)

    def forward(self, tokens):
        return self.head(self.body(self.words(tokens)))


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(Encoder(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(7 + rank)
    for step in range(40):
        tokens = torch.randint(1, 200, (8, 12), generator=generator)
        share = 0.15 if rank == 0 or step != 12 else 0.0
        masked = torch.rand(tokens.shape, generator=generator) < share
        scores = model(tokens.masked_fill(masked, 0))
        loss = torch.tensor(0.0, requires_grad=True)
        if masked.any():
            loss = F.cross_entropy(scores[masked], tokens[masked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
