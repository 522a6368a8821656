"""Uploads its log by a thread."""

import os
import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Uploader(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="uploader")
        self.queue: queue.Queue[str] = queue.Queue()

    def run(self) -> None:
        while True:
            self.queue.get()


def main() -> None:
    dist.init_process_group("gloo")
    uploader = Uploader()
    uploader.start()
    model = DDP(nn.Linear(16, 1))
    for step in range(10):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        loss.backward()
        uploader.queue.put(f"{step} {loss.item()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
