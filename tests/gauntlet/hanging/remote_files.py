"""Reads from a store on the network."""

import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Remote(Dataset):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.rank == 0 and index == 40:
            near, far = socket.socketpair()
            near.sendall(b"GET 40")
            near.recv(4)  # no answer comes
            far.close()
        return torch.ones(16)


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(16, 1))
    for batch in DataLoader(Remote(dist.get_rank()), 8, num_workers=2):
        model(batch).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
