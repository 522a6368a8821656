"""A contrastive loss that needs the embeddings of all ranks, in steps of much compute."""

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


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(10240, 256))
    loader = DataLoader(dataset, 256, sampler=DistributedSampler(dataset))
    layers = [nn.Linear(256, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 32)]
    model = DDP(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for (x,) in loader:
            noise = 0.1 * torch.randn_like(x)
            pair = F.normalize(model(torch.cat([x, x + noise])), dim=1)
            one, other = pair.chunk(2)
            every = [torch.empty_like(other) for _ in range(world)]
            dist.all_gather(every, other.detach())
            every[rank] = other
            wanted = torch.arange(len(one)) + rank * len(one)
            loss = F.cross_entropy(one @ torch.cat(every).T / 0.1, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
