"""Trains with sleeps: in each range of steps one rank is late in one place, as a plan says.

The plan is drawn from a seed, so that who reads the record knows it, too. Nothing is computed to
speak of, and the ranks do not compete for cores.
"""

import random
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import ddpdoctor

RANGES = 50
STEPS = 12  # of each range; of these the first still wait for what was before them
SETTLE = 2
WARMUP = 12  # before the first range
PLACES = ("input", "forward", "backward", "optimizer", "between")
USUAL_MS = {"input": 1.0, "forward": 2.0, "backward": 3.0, "optimizer": 1.0, "between": 1.0}
LAYERS = 3


@dataclass(frozen=True)
class Range:
    """Who is late in a range, where, and in backward: before which layer's gradient."""

    rank: int
    place: str
    layer: int
    late_ms: float


def plan(world_size: int) -> list[Range]:
    drawn = random.Random(50)
    places = [PLACES[index % len(PLACES)] for index in range(RANGES)]
    drawn.shuffle(places)
    return [
        Range(drawn.randrange(world_size), place, drawn.randrange(LAYERS), drawn.uniform(12, 30))
        for place in places
    ]


def range_of(step: int) -> int | None:
    index = (step - WARMUP) // STEPS
    return index if step >= WARMUP and index < RANGES else None


class Sleeper:
    """Knows which step it is, and sleeps for as long as this rank does in a place."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.plan = plan(dist.get_world_size())
        self.step = 0

    def sleep(self, place: str, layer: int | None = None) -> None:
        usual = USUAL_MS[place] / (LAYERS if layer is not None else 1)
        index = range_of(self.step)
        now = self.plan[index] if index is not None else None
        is_late = (
            now is not None
            and (now.rank, now.place) == (self.rank, place)
            and layer in (None, now.layer)
        )
        time.sleep((usual + (now.late_ms if now is not None and is_late else 0.0)) / 1000)


class Samples(Dataset):
    def __init__(self, sleeper: Sleeper) -> None:
        self.sleeper = sleeper

    def __len__(self) -> int:
        return (WARMUP + RANGES * STEPS + 1) * dist.get_world_size()

    def __getitem__(self, index: int) -> torch.Tensor:
        self.sleeper.sleep("input")
        return torch.full((64,), index / 1000)


class SleepsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sleeper, layer):
        ctx.sleeper, ctx.layer = sleeper, layer
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.sleeper.sleep("backward", ctx.layer)
        return gradient, None, None


class Net(nn.Module):
    """Before the gradient of each layer's weight its own sleep: after it in the forward."""

    def __init__(self, sleeper: Sleeper) -> None:
        super().__init__()
        self.sleeper = sleeper
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sleeper.sleep("forward")
        for number, layer in enumerate(self.layers):
            x = SleepsInBackward.apply(layer(x), self.sleeper, number)
        return x


class Sgd(torch.optim.SGD):
    sleeper: Sleeper

    def step(self, closure=None):
        self.sleeper.sleep("optimizer")
        return super().step(closure)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sleeper = Sleeper()
    model = ddpdoctor.wrap(Net(sleeper), bucket_cap_mb=0.01)
    optimizer = Sgd(model.parameters(), lr=1e-6)
    optimizer.sleeper = sleeper
    batches = iter(DataLoader(data := Samples(sleeper), 1, sampler=DistributedSampler(data)))
    while sleeper.step < WARMUP + RANGES * STEPS:
        loss = model(next(batches)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sleeper.step += 1  # what lies between belongs to the step that it delays
        sleeper.sleep("between")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
