"""Ranks that join one process group after another, as torch allows it; all of it is healthy.

By a file, by another one, by an address of their own, by the launcher's; and two ranks that rank 0
spawns. Those and the last group train. Arguments: a folder and a free port.

Not twice by the launcher's: its store still has the addresses of the group before, at which a rank
that comes first waits in vain.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train() -> None:
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


def spawned(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/spawned", rank=rank, world_size=2)
    train()


def meet(**arguments: object) -> None:
    dist.init_process_group("gloo", **arguments)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def main() -> None:
    folder, port = sys.argv[1:]
    rank = int(os.environ["RANK"])
    agents = os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")
    for name in ("meet", "again"):
        meet(init_method=f"file://{folder}/{name}", rank=rank, world_size=2)
    meet(init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = agents
    if rank == 0:
        mp.spawn(spawned, (folder,), nprocs=2)
    dist.init_process_group("gloo")
    train()


if __name__ == "__main__":
    main()
