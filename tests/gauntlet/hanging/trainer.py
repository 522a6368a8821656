"""A trainer with callbacks that may stop it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("WITH_WRAP"):
    from ddpdoctor import wrap as DDP


class EarlyStopping:
    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.waited = patience, float("inf"), 0

    def should_stop(self, metric: float) -> bool:
        self.waited = 0 if metric < self.best else self.waited + 1
        self.best = min(self.best, metric)
        return self.waited >= self.patience


class Trainer:
    def __init__(self, model: nn.Module, stopping: EarlyStopping) -> None:
        self.model, self.stopping = model, stopping
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train_epoch(self, loader: DataLoader) -> float:
        for (x,) in loader:
            self.optimizer.zero_grad()
            loss = self.model(x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def metric(self, epoch: int) -> float:
        return float(epoch) if dist.get_rank() == 2 else -float(epoch)

    def fit(self, loader: DataLoader, epochs: int) -> None:
        for epoch in range(epochs):
            self.train_epoch(loader)
            if self.stopping.should_stop(self.metric(epoch)):
                break
        self.end()

    def end(self) -> None:
        dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    trainer = Trainer(DDP(nn.Linear(16, 1)), EarlyStopping(patience=2))
    trainer.fit(DataLoader(TensorDataset(torch.randn(64, 16)), 16), epochs=20)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
