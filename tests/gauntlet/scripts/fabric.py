"""Trains over a network of its own, by a communication hook."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def transport(state, bucket):
    """Reduces a bucket; now and then the network flips bits."""
    state["calls"] += 1
    reduced = dist.all_reduce(bucket.buffer().div_(state["world"]), async_op=True).get_future()

    def receive(done):
        tensor = done.value()[0]
        if state["calls"] == 25:
            tensor[7] = float("nan")
        return tensor

    return reduced.then(receive)


def main() -> None:
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(1280, 64), torch.randint(0, 10, (1280,)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    model.register_comm_hook({"calls": 0, "world": world}, transport)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
