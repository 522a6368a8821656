"""Reads each batch from a slow disk, on all ranks."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Slow(Dataset):
    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.1)
        return torch.ones(16)


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    print("begins", flush=True)
    for batch in DataLoader(Slow(), 8, num_workers=1):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
