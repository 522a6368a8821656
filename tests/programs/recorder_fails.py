"""Plain training; in it each rank's recorder raises at a place of its own, as a bug of ours would.

The first argument is the name under which weights are saved; the others name, for each rank, the
part of the recorder that raises.
"""

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

import ddpdoctor
from ddpdoctor.recorder.collectives import Collectives
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.stalls import StallWatch
from ddpdoctor.recorder.training import TrainingHooks
from ddpdoctor.recorder.writer import RankFile

PARTS = {
    "writer": (RankFile, "add"),
    "finish": (RankFile, "finish"),
    "phases": (Phases, "begin_forward"),
    "backward": (TrainingHooks, "_backward_begins"),
    "optimizer": (TrainingHooks, "_end_optimizer"),
    "completion": (Collectives, "_over"),
    "sentinel": (StallWatch, "look"),
}


def break_at(part: str, calls: int) -> None:
    """Let a method raise from its n-th call on."""
    kind, name = PARTS[part]
    original: Callable[..., object] = getattr(kind, name)
    left = [calls]

    def broken(self: object, *arguments: object, **named: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise LookupError(f"{part} is broken")
        return original(self, *arguments, **named)

    setattr(kind, name, broken)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    saved, *parts = sys.argv[1:]
    if parts:
        break_at(parts[dist.get_rank()], calls=20)
    model = ddpdoctor.wrap(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        optimizer.zero_grad()
        inputs = torch.full((4, 8), float(dist.get_rank() + step)) + torch.eye(4, 8)
        model(inputs).square().sum().backward()
        optimizer.step()
    torch.save(model.state_dict(), f"{saved}.{dist.get_rank()}")
    dist.destroy_process_group()


main()
