"""Trains a ranker; every step gathers the predictions of all ranks as objects for a log."""

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
    dataset = TensorDataset(torch.randn(3200, 48), torch.rand(3200, 1))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    log = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            score = model(x)
            optimizer.zero_grad()
            F.mse_loss(score, y).backward()
            optimizer.step()
            rows = [
                {"rank": rank, "score": s, "wanted": w}
                for s, w in zip(score.flatten().tolist(), y.flatten().tolist(), strict=True)
            ]
            gathered = [None] * world
            dist.all_gather_object(gathered, rows)
            log.append(sum(len(part) for part in gathered))
    if rank == 0:
        print(sum(log), "rows logged")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
