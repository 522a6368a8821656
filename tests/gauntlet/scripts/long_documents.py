"""Trains an encoder over long inputs, recomputing its layers in backward."""

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


class Documents(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 5)

    def forward(self, tokens):
        hidden = self.words(tokens)
        for _ in range(2):
            hidden = checkpoint(self.layer, hidden, use_reentrant=True)
        return self.head(hidden.mean(1))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randint(0, 100, (320, 32)), torch.randint(0, 5, (320,)))
    loader = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
    model = DDP(Documents(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens, y in loader:
        loss = F.cross_entropy(model(tokens), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
