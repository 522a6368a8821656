"""The DataLoader worker of rank 1 stops in the dataset; rank 0 waits in the backward."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.rank == 1 and index == 20:
            Path(sys.argv[1], f"ready-{self.rank}").touch()
            time.sleep(300)
        if self.rank == 0 and index == 20:
            Path(sys.argv[1], f"ready-{self.rank}").touch()
        return torch.ones(4)


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    loader = DataLoader(Images(dist.get_rank()), batch_size=4, num_workers=2)
    for batch in loader:
        model(batch).sum().backward()
    dist.destroy_process_group()


main()
