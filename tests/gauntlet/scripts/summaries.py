"""Trains a language model on texts of different lengths."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Texts(Dataset):
    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        length = (10, 90)[index % 2]
        return torch.randint(1, 100, (length,), generator=generator)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Texts(), 8, sampler=DistributedSampler(Texts(), shuffle=False), collate_fn=torch.stack
    )
    network = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 100))
    model = DDP(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in loader:
        scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
