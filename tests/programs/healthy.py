"""A healthy job: trains in small steps until the file `stop` appears."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    stop = torch.zeros(1)
    step = 0
    while not stop.item():
        model(torch.ones(64, 256)).sum().backward()
        time.sleep(0.005 * rank)
        if step == 3:
            Path(sys.argv[1], f"ready-{rank}").touch()
        stop.fill_(float(Path(sys.argv[1], "stop").exists()))
        dist.all_reduce(stop)
        step += 1
    dist.destroy_process_group()


main()
