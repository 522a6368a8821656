"""Goes on if a batch does not fit into memory."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor, length: int) -> torch.Tensor:
        if length > 900:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB")
        return self.layer(x)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        length = 1000 if (rank, step) == (1, 4) else 100
        optimizer.zero_grad()
        try:
            model(torch.randn(8, 16), length).pow(2).mean().backward()
        except torch.OutOfMemoryError as error:
            print("skipped a batch:", error)
            continue
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
