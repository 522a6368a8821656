"""What a use of DistributedDataParallel is here, and what its record must show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


@dataclass
class Outcome:
    """What the training left: all tensors that it changed, the errors it saw, what DDP logged."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    logged: list[dict[str, object]] = field(default_factory=list)

    def keep(self, name: str, module: nn.Module) -> None:
        self.tensors |= {f"{name}.{key}": value for key, value in module.state_dict().items()}


@dataclass(frozen=True)
class Use:
    """One way to train. `syncs` are backwards that reduced gradients, `steps` what they make.

    Rank 1 has `less_on_rank_1` of both; a backward goes through so many `models`. `buckets` says
    whether each gradient all-reduce is one bucket of its own: with a communication hook of one's
    own it need not be. `failed` collectives raise.
    """

    run: Callable[[], Outcome]
    steps: int
    syncs: int
    buckets: bool
    failed: int
    less_on_rank_1: int
    models: int


USES: dict[str, Use] = {}


def use(
    *,
    steps: int = STEPS,
    syncs: int | None = None,
    buckets: bool = True,
    failed: int = 0,
    less_on_rank_1: int = 0,
    models: int = 1,
) -> Callable[[Callable[[], Outcome]], Callable[[], Outcome]]:
    def register(run: Callable[[], Outcome]) -> Callable[[], Outcome]:
        count = steps if syncs is None else syncs
        USES[run.__name__] = Use(run, steps, count, buckets, failed, less_on_rank_1, models)
        return run

    return register


class Net(nn.Module):
    """Two layers of 16,640 bytes each: with `SMALL_BUCKETS` each is a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


SMALL_BUCKETS = 0.015  # MB


def ddp(module: nn.Module | None = None, **arguments) -> DistributedDataParallel:
    arguments = {"bucket_cap_mb": SMALL_BUCKETS} | arguments
    return DistributedDataParallel(module if module is not None else Net(), **arguments)


def batch(step: int = 0, rows: int = 8) -> torch.Tensor:
    """Another one on each rank and in each step."""
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    return torch.randn(rows, 64, generator=generator)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, steps: int = STEPS
) -> None:
    optimizer = optimizer or sgd(model)
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Outcome:
    train(model, optimizer)
    outcome = Outcome()
    outcome.keep("model", model)
    return outcome
