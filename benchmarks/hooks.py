"""CPU time of the recorder's hooks: `python -m benchmarks.hooks [--json] [--rounds N]`.

One process on gloo, so that nothing waits for a network. Short blocks of steps alternate between
bare DDP, the recorder, and *passing*: Python kernels in front of the same operations that only
pass on, the least that any recorder of this kind takes. Machines differ by far in all of these; how
many times *passing* the recorder takes can be compared between them.

What a step takes is measured on a model in one bucket. What a bucket takes is the difference to
the same model in many; what a call takes, that of the script's own all-reduce.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder import sentinel
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.session import Recorder
from ddpdoctor.settings import Settings

BARE: Final = "bare"
PASSING: Final = "passing"
RECORDED: Final = "ddpdoctor"
ROUNDS: Final = 7
# Past these steps the recorder is in its steady state: not every completion and gradient is looked
# at any more.
WARM_UP: Final = 257
CHUNK: Final = 32  # steps or calls; of a block the median chunk counts, so that a burst does not
CHUNKS: Final = 8
LAYERS: Final = 12
ENDLESS: Final = 1_000_000_000
ONE_BUCKET_MB: Final = 100.0
MANY_BUCKETS_MB: Final = 0.001

Body = Callable[[int], None]  # runs so many steps, or calls


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU: of the training thread, and of all threads of the process."""

    thread: float
    process: float


class Loop:
    """The training of a small model of LAYERS layers."""

    def __init__(self, bucket_cap_mb: float) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(32, 32) for _ in range(LAYERS)]
        self.model = DistributedDataParallel(  # type: ignore[call-arg, unused-ignore]
            nn.Sequential(*layers), bucket_cap_mb=bucket_cap_mb
        )
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self._dataset = TensorDataset(torch.randn(4096, 32), torch.randint(32, (4096,)))
        self.begin_epoch()

    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            inputs, labels = next(self._batches)
            self._optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()

    def begin_epoch(self) -> None:
        drawn = RandomSampler(self._dataset, replacement=True, num_samples=ENDLESS)
        self._batches = iter(DataLoader(self._dataset, batch_size=8, sampler=drawn))


def _calls(calls: int) -> None:
    tensor = torch.zeros(256)
    for _ in range(calls):
        dist.all_reduce(tensor)


@contextmanager
def _installed(name: str, model: DistributedDataParallel, folder: str) -> Iterator[None]:
    if name == PASSING:
        kernels = private.KernelRegistration(_pass_on)
        yield
        kernels.remove()
    elif name == RECORDED:
        recorder = Recorder(Guard(_fail), Settings(dir=folder), torch.device("cpu"))
        recorder.add(model)
        yield
        recorder.close()
    else:
        yield


def _pass_on(_op: private.CollectiveOp, redispatch: private.Kernel, behind: Any) -> private.Kernel:
    def kernel(keyset: Any, *arguments: Any) -> Any:
        return redispatch(keyset & behind, *arguments)

    return private.without_dynamo(kernel)


def _fail(error: Exception) -> None:
    raise error


def _block(body: Body) -> Cost:
    body(WARM_UP)
    chunks = [_chunk(body) for _ in range(CHUNKS)]
    return Cost(
        statistics.median(chunk.thread for chunk in chunks),
        statistics.median(chunk.process for chunk in chunks),
    )


def _chunk(body: Body) -> Cost:
    thread, process = time.thread_time(), time.process_time()
    body(CHUNK)
    thread, process = time.thread_time() - thread, time.process_time() - process
    return Cost(thread / CHUNK * 1e6, process / CHUNK * 1e6)


def measure(rounds: int, folder: str) -> dict[str, Any]:
    one, many = Loop(ONE_BUCKET_MB), Loop(MANY_BUCKETS_MB)
    bodies: dict[str, tuple[Body, DistributedDataParallel]] = {
        "one": (one, one.model),
        "many": (many, many.model),
        "calls": (_calls, one.model),
    }
    found: dict[str, list[dict[str, Cost]]] = {name: [] for name in bodies}
    for number in range(rounds + 1):
        for body_name, (body, model) in bodies.items():
            blocks = {}
            for name in _order(number):
                with _installed(name, model, f"{folder}/{number}{body_name}"):
                    if isinstance(body, Loop):
                        body.begin_epoch()
                    blocks[name] = _block(body)
            if number > 0:  # the first round warms up
                found[body_name].append(blocks)
    buckets = {name: len(private.bucket_bytes(bodies[name][1])) for name in ("one", "many")}
    return _figures(found, buckets)


def _order(number: int) -> tuple[str, ...]:
    names = (BARE, PASSING, RECORDED)
    return names if number % 2 else names[::-1]


def _figures(found: dict[str, list[dict[str, Cost]]], buckets: dict[str, int]) -> dict[str, Any]:
    more = buckets["many"] - buckets["one"]
    figures: dict[str, Any] = {"buckets": buckets}
    for clock in ("thread", "process"):
        for name in (PASSING, RECORDED):
            extra = {
                body: [getattr(b[name], clock) - getattr(b[BARE], clock) for b in blocks]
                for body, blocks in found.items()
            }
            bucket = [(m - o) / more for m, o in zip(extra["many"], extra["one"], strict=True)]
            step = [o - buckets["one"] * b for o, b in zip(extra["one"], bucket, strict=True)]
            for what, values in (("step", step), ("bucket", bucket), ("call", extra["calls"])):
                figures.setdefault(what, {}).setdefault(name, {})[clock] = _summary(values)
    for what in ("bucket", "call"):
        cost = figures[what]
        cost["times_passing"] = round(
            cost[RECORDED]["process"]["us"] / cost[PASSING]["process"]["us"], 2
        )
    return figures


def _summary(values: list[float]) -> dict[str, Any]:
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return {"us": round(middle, 1), "quartiles": [round(first, 1), round(third, 1)]}


def _table(figures: dict[str, Any]) -> str:
    lines = [f"{'CPU us of':10} {'variant':10} {'thread':>8} {'process':>8} {'quartiles':>17}"]
    for what in ("step", "bucket", "call"):
        for name in (PASSING, RECORDED):
            cost = figures[what][name]
            low, high = cost["process"]["quartiles"]
            quartiles = f"[{low}, {high}]"
            lines.append(
                f"{what:10} {name:10} {cost['thread']['us']:8} {cost['process']['us']:8} "
                f"{quartiles:>17}"
            )
    times = {what: figures[what]["times_passing"] for what in ("bucket", "call")}
    lines += [f"a {what} takes {times[what]} times one that only passes" for what in times]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sentinel.LATER_S = 0.0  # type: ignore[misc]  # in its steady state, too
    with tempfile.TemporaryDirectory(prefix="ddpdoctor-hooks-") as folder:
        dist.init_process_group(
            "gloo", init_method=Path(folder, "store").as_uri(), rank=0, world_size=1
        )
        figures = measure(options.rounds, folder)
        dist.destroy_process_group()
    print(json.dumps(figures, indent=1) if options.json else _table(figures))


if __name__ == "__main__":
    main()
