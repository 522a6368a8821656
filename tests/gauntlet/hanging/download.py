"""Rank 0 gets a file over a slow line, the others wait at the barrier."""

import os
import socket
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def serve(connection: socket.socket) -> None:
    while True:
        connection.sendall(bytes(40_000))
        time.sleep(0.2)


def download() -> int:
    near, far = socket.socketpair()
    threading.Thread(target=serve, args=(far,), daemon=True).start()
    got = 0
    while got < 40_000_000:
        got += len(near.recv(65_536))
    return got


def main() -> None:
    dist.init_process_group("gloo")
    model = DDP(nn.Linear(16, 1))
    model(torch.randn(8, 16)).sum().backward()
    print("begins", flush=True)
    if dist.get_rank() == 0:
        download()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
