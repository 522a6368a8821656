"""Each rank has a part of the field plots that were split by hand."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


PARTS = (64, 64, 128, 64)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    loader = DataLoader(TensorDataset(torch.randn(PARTS[rank], 32)), 16, shuffle=True)
    model = DDP(nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        for (x,) in loader:
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
