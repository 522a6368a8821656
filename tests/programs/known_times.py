"""Trains with sleeps of known length, and saves how long each part of a step really took.

The steps come in ranges of STEPS, and in each one rank is late in one place, or none is; then the
same again with a model whose buffers are broadcast before each forward. What is computed is
next to nothing, so that ranks do not compete for cores.
"""

import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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


class Truth:
    """Nanoseconds in each part of each step, by this program's own clock.

    `ready` is the moment at which the gradients were computed, and `blocked` the time for which
    DDP held the program up: before the forward, and after that moment.
    """

    def __init__(self, late: bool) -> None:
        self.late = late
        self.steps: list[Counter[str]] = [Counter()]

    def late_in(self, place: str) -> bool:
        return self.late and PLACES[(len(self.steps) - 1) // STEPS % len(PLACES)] == place

    def sleep(self, place: str) -> None:
        time.sleep((USUAL_MS[place] + LATE_MS * self.late_in(place)) / 1000)

    @contextmanager
    def took(self, part: str) -> Iterator[None]:
        began = time.monotonic_ns()
        yield
        self.steps[-1][part] += time.monotonic_ns() - began

    def now(self, moment: str) -> None:
        self.steps[-1][moment] = time.monotonic_ns()


class Samples(Dataset):
    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def __len__(self) -> int:
        return 2 * len(PLACES) * STEPS * dist.get_world_size()

    def __getitem__(self, index: int) -> torch.Tensor:
        self.truth.sleep("input")
        return torch.full((64,), float(index))


class SleepsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, truth):
        ctx.truth = truth
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.truth.sleep("backward")
        ctx.truth.now("ready")
        return gradient, None


class Net(nn.Module):
    def __init__(self, truth: Truth, norm: nn.Module) -> None:
        super().__init__()
        self.truth = truth
        self.first, self.norm, self.last = nn.Linear(64, 128), norm, nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.truth.took("forward"):
            self.truth.sleep("forward")
            x = SleepsInBackward.apply(self.norm(self.first(x)), self.truth)
            return self.last(x)


class Sgd(torch.optim.SGD):
    def __init__(self, model: nn.Module, truth: Truth) -> None:
        super().__init__(model.parameters(), lr=1e-6)
        self.truth = truth

    def step(self, closure=None):
        self.truth.sleep("optimizer")
        return super().step(closure)


def train(model: nn.Module, batches: Iterator[torch.Tensor], truth: Truth) -> None:
    model.eval()  # one sample has no batch statistics; buffers are broadcast all the same
    optimizer = Sgd(model, truth)
    for _ in range(len(PLACES) * STEPS):
        with ddpdoctor.span("forward, as the user sees it"):
            with truth.took("input"):
                batch = next(batches)
            with truth.took("call"):
                loss = model(batch).sum()
        truth.now("backward began")
        loss.backward()
        truth.now("backward ended")
        with truth.took("optimizer"):
            optimizer.step()
        with truth.took("between"):
            optimizer.zero_grad()
            truth.sleep("between")
            if truth.late_in("gc"):
                with truth.took("gc"):
                    gc.collect()
        complete(truth.steps[-1])
        truth.steps.append(Counter())


def complete(step: Counter[str]) -> None:
    step["backward"] = step["ready"] - step["backward began"]
    step["blocked"] = step["call"] - step["forward"] + step["backward ended"] - step["ready"]


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    truth = Truth(late=rank == world_size // 2)
    models = [
        ddpdoctor.wrap(Net(truth, norm), bucket_cap_mb=0.05)
        for norm in (nn.Identity(), nn.BatchNorm1d(128))
    ]
    batches = iter(DataLoader(data := Samples(truth), 1, sampler=DistributedSampler(data)))
    gc.disable()  # the collections are those that this program measures ...
    gc.freeze()  # ... and go through its own garbage only
    garbage = [[index] for index in range(GARBAGE)] if truth.late else []
    for model in models:
        train(model, batches, truth)
    del garbage
    (folder / f"truth-{rank}.json").write_text(json.dumps(truth.steps))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
