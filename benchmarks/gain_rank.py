"""A rank of `python -m benchmarks.gain`: trains variants in turn, and times each.

Its layers sleep, as if a device computed beside the CPU, so that a busy CPU disturbs less. Writes
{variant: milliseconds a micro-batch} as JSON to `--out` on rank 0.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

WARMUP = 4  # steps: DDP rebuilds its buckets in the second


class Takes(torch.autograd.Function):
    """The identity, which takes its time both ways."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds / 2)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class Net(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        width = options.width
        layers = [nn.Linear(width, width, bias=False) for _ in range(options.layers)]
        self.layers = nn.ModuleList(layers)
        self.seconds = options.layer_ms / 1e3
        if options.buffer_kb:
            self.register_buffer("statistics", torch.zeros(options.buffer_kb * 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(Takes.apply(layer(x), self.seconds))
        return x


def wrapped(options: argparse.Namespace, variant: str) -> nn.Module:
    torch.manual_seed(0)
    cap = float(variant.partition("=")[2]) if variant.startswith("cap=") else options.cap
    settings = {"bucket_cap_mb": cap, "broadcast_buffers": variant != "no-buffers"}
    if options.wrap:
        import ddpdoctor

        return ddpdoctor.wrap(Net(options), **settings)
    model = DistributedDataParallel(Net(options), **settings)
    if variant == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model


class Training:
    """One variant, with a model of its own."""

    def __init__(self, options: argparse.Namespace, variant: str) -> None:
        self.model = wrapped(options, variant)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.every = int(variant.partition("=")[2]) if variant.startswith("accumulate=") else 1
        self.x = torch.randn(options.batch_size, options.width)

    def milliseconds(self, steps: int) -> float:
        """A micro-batch, on average of so many steps."""
        began = time.perf_counter()
        for micro in range(1, steps * self.every + 1):
            ends = micro % self.every == 0
            with nullcontext() if ends else self.model.no_sync():
                self.model(self.x).square().mean().backward()
            if ends:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return 1e3 * (time.perf_counter() - began) / (steps * self.every)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", action="append", required=True)
    parser.add_argument("--cap", type=float, default=25)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--buffer-kb", type=int, default=0)
    parser.add_argument("--layer-ms", type=float, default=10)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wrap", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    trainings = {variant: Training(options, variant) for variant in options.variant}
    for training in trainings.values():
        training.milliseconds(WARMUP)
    rounds = [
        {variant: training.milliseconds(options.steps) for variant, training in trainings.items()}
        for _ in range(options.rounds)
    ]
    times = {variant: median(each[variant] for each in rounds) for variant in trainings}
    if options.out and dist.get_rank() == 0:
        options.out.write_text(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
