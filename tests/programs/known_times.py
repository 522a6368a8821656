"""Trains with sleeps of known length, and saves how long each really took.

The steps come in ranges of STEPS, and in each one rank is late in one place, or none is; then the
same again with a model whose buffers are broadcast before each forward. What is computed is
next to nothing, so that ranks do not compete for cores.
"""

import gc
import json
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import ddpdoctor

PLACES = ("none", "input", "forward", "backward", "optimizer", "between", "gc")
STEPS = 10  # of each range
USUAL_MS = {"input": 3.0, "forward": 3.0, "backward": 6.0, "optimizer": 2.0, "between": 2.0}
LATE_MS = 30.0
GARBAGE = 300_000  # containers that a collection looks through


class Sleeper:
    """Sleeps as planned for this rank and step, and keeps what it took, by step and place."""

    def __init__(self, late: bool) -> None:
        self.late = late
        self.step = 0
        self.slept: list[Counter[str]] = [Counter()]

    def late_in(self, place: str) -> bool:
        return self.late and PLACES[self.step // STEPS % len(PLACES)] == place

    def sleep(self, place: str) -> None:
        began = time.monotonic_ns()
        time.sleep((USUAL_MS[place] + LATE_MS * self.late_in(place)) / 1000)
        self.slept[-1][place] += time.monotonic_ns() - began

    def collect(self) -> None:
        began = time.monotonic_ns()
        gc.collect()
        took = time.monotonic_ns() - began
        self.slept[-1]["gc"] += took
        self.slept[-1]["between"] += took

    def next_step(self) -> None:
        self.step += 1
        self.slept.append(Counter())


class Samples(Dataset):
    def __init__(self, sleeper: Sleeper) -> None:
        self.sleeper = sleeper

    def __len__(self) -> int:
        return 2 * len(PLACES) * STEPS * dist.get_world_size()

    def __getitem__(self, index: int) -> torch.Tensor:
        self.sleeper.sleep("input")
        return torch.full((64,), float(index))


class SleepsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sleeper):
        ctx.sleeper = sleeper
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.sleeper.sleep("backward")
        return gradient, None


class Net(nn.Module):
    def __init__(self, sleeper: Sleeper, norm: nn.Module) -> None:
        super().__init__()
        self.sleeper = sleeper
        self.first, self.norm, self.last = nn.Linear(64, 128), norm, nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sleeper.sleep("forward")
        x = SleepsInBackward.apply(self.norm(self.first(x)), self.sleeper)
        return self.last(x)


class Sgd(torch.optim.SGD):
    def __init__(self, model: nn.Module, sleeper: Sleeper) -> None:
        super().__init__(model.parameters(), lr=1e-6)
        self.sleeper = sleeper

    def step(self, closure=None):
        self.sleeper.sleep("optimizer")
        return super().step(closure)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sleeper = Sleeper(late=rank == world_size // 2)
    batches = iter(DataLoader(data := Samples(sleeper), 1, sampler=DistributedSampler(data)))
    models = [
        ddpdoctor.wrap(Net(sleeper, norm), bucket_cap_mb=0.05)
        for norm in (nn.Identity(), nn.BatchNorm1d(128))
    ]
    gc.disable()  # the collections are those that this program measures ...
    gc.freeze()  # ... and go through its own garbage only
    garbage = [[index] for index in range(GARBAGE)] if sleeper.late else []
    for model in models:
        optimizer = Sgd(model, sleeper)
        model.eval()  # one sample has no batch statistics; buffers are broadcast all the same
        for _ in range(len(PLACES) * STEPS):
            optimizer.zero_grad()
            with ddpdoctor.span("forward, as the user sees it"):
                loss = model(next(batches)).sum()
            loss.backward()
            optimizer.step()
            sleeper.sleep("between")
            if sleeper.late_in("gc"):
                sleeper.collect()
            sleeper.next_step()
    del garbage
    (folder / f"slept-{rank}.json").write_text(json.dumps(sleeper.slept))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
