"""A rank of `python -m benchmarks.gain`: trains variants one after the other, and times each.

Writes {variant: milliseconds a micro-batch} as JSON to `--out` on rank 0.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

WARMUP = 6  # steps: DDP rebuilds its buckets in the second


class Net(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        width = options.width
        layers = [nn.Linear(width, width, bias=False) for _ in range(options.layers)]
        self.layers = nn.ModuleList(layers)
        if options.buffer_kb:
            self.register_buffer("statistics", torch.zeros(options.buffer_kb * 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
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


def trained(options: argparse.Namespace, variant: str) -> float:
    """Milliseconds a micro-batch."""
    model = wrapped(options, variant)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    every = int(variant.partition("=")[2]) if variant.startswith("accumulate=") else 1
    x = torch.randn(options.batch_size, options.width)
    began = time.perf_counter()
    for step in range((WARMUP + options.steps) * every):
        if step == WARMUP * every:
            began = time.perf_counter()
        ends = (step + 1) % every == 0
        with nullcontext() if ends else model.no_sync():
            model(x).square().mean().backward()
        if ends:
            optimizer.step()
            optimizer.zero_grad()
    return 1e3 * (time.perf_counter() - began) / (options.steps * every)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", action="append", required=True)
    parser.add_argument("--cap", type=float, default=25)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--buffer-kb", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--wrap", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    times = {variant: trained(options, variant) for variant in options.variant}
    if options.out and dist.get_rank() == 0:
        options.out.write_text(json.dumps(times))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
