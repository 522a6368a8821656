"""Reads samples through a database that is opened once."""

import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Database:
    """One reader at a time; a thread of its own keeps it warm."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = threading.Event()
        threading.Thread(target=self._warm, daemon=True).start()
        self.open.wait()

    def _warm(self) -> None:
        with self.lock:
            self.open.set()
            time.sleep(2)

    def get(self, index: int) -> torch.Tensor:
        with self.lock:
            return torch.full((16,), float(index))


class Samples(Dataset):
    def __init__(self, database: Database) -> None:
        self.database = database

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.database.get(index)


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(16, 1))
    for batch in DataLoader(Samples(Database()), 8, num_workers=1, multiprocessing_context="fork"):
        model(batch).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
