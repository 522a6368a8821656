"""Trains with a moving average of the weights, which is evaluated."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    TensorDataset,
)

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(3840, 64), torch.randint(0, 10, (3840,)))
    x_test, y_test = torch.randn(256, 64), torch.randint(0, 10, (256,))
    loader = DataLoader(dataset, 64, sampler=DistributedSampler(dataset))
    model = DDP(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)))
    average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(model.module)
        with torch.no_grad():
            print(epoch, F.cross_entropy(average(x_test), y_test).item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
