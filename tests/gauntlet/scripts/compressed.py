"""Trains with gradients that are sent as small integers."""

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


def as_small_integers(group, bucket):
    """Sends the gradients with eight bits each, scaled by their largest."""
    gradients = bucket.buffer()
    scale = gradients.abs().max() / 127 + 1e-12
    small = (gradients / scale).round().to(torch.int32)
    sent = dist.all_reduce(small, async_op=True).get_future()
    return sent.then(lambda done: done.value()[0] * scale / dist.get_world_size())


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(1280, 64), torch.randint(0, 10, (1280,)))
    loader = DataLoader(dataset, 16, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    model.register_comm_hook(None, as_small_integers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
