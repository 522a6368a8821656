"""Plain DDP training in which rank 1 raises after some steps, below torchrun's own decorator."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        if step == 20 and dist.get_rank() == 1:
            1 / 0  # noqa: B018  the fault
        optimizer.step()
    dist.destroy_process_group()


main()
