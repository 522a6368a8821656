"""One rank of the overhead benchmark: all variants in one process group, in alternating order.

Other load on the machine is far larger than what is measured here, and so is what the place of a
model in memory does. So a variant is compared with bare DDP of the same round, a second or two
apart, on the same model.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler

from benchmarks.overhead_models import WORKLOADS, Workload
from ddpdoctor.events import DETAIL_RECORD, PREAMBLE, STEP_RECORD
from ddpdoctor.recorder import sentinel
from ddpdoctor.recorder._torch_private import bucket_bytes
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.session import Recorder
from ddpdoctor.schedule import Steps
from ddpdoctor.settings import Settings

WARM_UP: Final = 4  # steps of a block before those measured: buckets settle, caches fill
FEWEST_MEASURED: Final = 2  # of each variant, for a spread
PROFILED: Final = 10  # torch.profiler keeps every event in memory: only a short window
ENDLESS: Final = 1_000_000_000
LEARNING_RATE: Final = 1e-4
BARE: Final = "bare"
RECORDED: Final = "ddpdoctor"
SWITCHED_OFF: Final = "ddpdoctor_off"  # installed, and outside the steps that are recorded
COMM_HOOK: Final = "comm_hook"
SETTLED: Final = 1024  # steps: by then the recorder does no more what it does in the first ones


@dataclass(frozen=True)
class Block:
    """The measured steps of one variant in one round."""

    round: int
    step_s: float
    cpu_s: float  # of the whole process, a step
    bytes_per_step: float


class Training:
    """A model and its steps."""

    def __init__(self, workload: Workload) -> None:
        torch.manual_seed(0)
        self.workload = workload
        self.dataset = workload.dataset()
        self.model = DistributedDataParallel(workload.make(), bucket_cap_mb=workload.bucket_cap_mb)  # type: ignore[call-arg, unused-ignore]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)

    def batches(self) -> Iterator[Any]:
        drawn = RandomSampler(self.dataset, replacement=True, num_samples=ENDLESS)
        return iter(DataLoader(self.dataset, batch_size=self.workload.batch, sampler=drawn))

    def step(self, batches: Iterator[Any]) -> None:
        inputs, labels = next(batches)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


class Variant:
    """What is switched on around the steps of a training."""

    def __init__(self, name: str, training: Training, folder: Path) -> None:
        self.name = name
        self._training = training
        self._folder = folder
        if name == COMM_HOOK:
            training.model.register_comm_hook(None, allreduce_hook)

    def block(self, number: int) -> Block:
        """Measure one block. What switching on and off takes is not counted."""
        steps = self._training.workload.steps
        steps = min(steps, PROFILED) if self.name == "profiler" else steps
        written: list[float] = []
        with self._switched_on(number, written, steps + WARM_UP):
            batches = self._training.batches()
            for _ in range(WARM_UP):
                self._step(batches)
            dist.barrier()
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(steps):
                self._step(batches)
            took, cpu = time.perf_counter() - began, time.process_time() - cpu
        return Block(number, took / steps, cpu / steps, written[0] if written else 0.0)

    def _step(self, batches: Iterator[Any]) -> None:
        with self._around_step():
            self._training.step(batches)

    def _around_step(self) -> AbstractContextManager[Any]:
        if self.name == "traceml":
            traced: AbstractContextManager[Any] = _traceml().trace_step(self._training.model)
            return traced
        return contextlib.nullcontext()

    @contextmanager
    def _switched_on(self, number: int, written: list[float], steps: int) -> Iterator[None]:
        if self.name == "profiler":
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                yield
        elif self.name in (RECORDED, SWITCHED_OFF):
            folder = str(self._folder / f"{self.name}{number}")
            steps_recorded = Steps(ENDLESS, None) if self.name == SWITCHED_OFF else None
            chosen = Settings(dir=folder, steps=steps_recorded)
            recorder = Recorder(Guard(_fail), chosen, torch.device("cpu"))
            recorder.add(self._training.model)
            _has_begun(recorder)
            _as_after(recorder, SETTLED + number * steps)
            yield
            recorder.close()
            written.append(_recorded_bytes(recorder) / steps)
        else:
            yield


def _has_begun(recorder: Recorder) -> None:
    """Wait for what ranks do beside the training when recording begins, once in a run."""
    if recorder._launch._thread is not None:
        recorder._launch._thread.join()


def _as_after(recorder: Recorder, steps: int) -> None:
    """Have a new recorder count on from here, as one that has been there for so many steps."""
    recorder._phases.sync = steps
    for model in recorder._models._models.values():
        model.sync = steps


def _traceml() -> Any:
    """No dependency of ours; `benchmarks.overhead` looks whether it is there."""
    return importlib.import_module("traceml_ai")


def _fail(error: Exception) -> None:
    raise error


def _recorded_bytes(recorder: Recorder) -> int:
    """Of the records alone: the header does not grow with the steps."""
    with (recorder.folder / f"rank{recorder.rank:05d}.ddt").open("rb") as file:
        _, _, length = PREAMBLE.unpack(file.read(PREAMBLE.size))
        header = json.loads(file.read(length))
    detail = header["ring"]["records"] + header["detail"]["records"]
    return int(detail * DETAIL_RECORD.size + header["steps"]["records"] * STEP_RECORD.size)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Blocks of each variant, round by round; the order changes from round to round."""
    workload = WORKLOADS[options.model]
    shared = Training(workload)
    variants = [
        Variant(name, Training(workload) if name == COMM_HOOK else shared, Path(options.folder))
        for name in options.variants.split(",")
    ]
    blocks: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in variants}
    began = time.monotonic()
    for number in range(options.rounds + 1):
        if number > FEWEST_MEASURED * options.others_every and _is_over(began + options.seconds):
            break
        for variant in _due(variants, number, options.others_every):
            block = variant.block(number)
            if number > 0:  # the first round warms up
                blocks[variant.name].append(asdict(block))
    parameters = sum(p.numel() for p in shared.model.parameters())
    buckets = len(bucket_bytes(shared.model))
    return {"parameters": parameters, "buckets": buckets, "blocks": blocks}


def _is_over(end: float) -> bool:
    """As the clock of rank 0 says, so that all ranks stop after the same round."""
    over = torch.tensor(time.monotonic() > end, dtype=torch.uint8)
    dist.broadcast(over, 0)
    return bool(over)


def _due(variants: list[Variant], number: int, others_every: int) -> list[Variant]:
    """Bare and recorded steps beside each other, now the one and now the other first."""
    pair = [variant for variant in variants if variant.name in (BARE, RECORDED)]
    others = [variant for variant in variants if variant not in pair]
    return pair[:: 1 if number % 2 else -1] + (others if number % others_every == 0 else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=WORKLOADS, required=True)
    parser.add_argument("--variants", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="begin no round after them")
    parser.add_argument("--others-every", type=int, required=True, help="rounds")
    parser.add_argument("--folder", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sentinel.LATER_S = 0.0  # type: ignore[misc]  # as after many steps, too
    dist.init_process_group("gloo")
    if "traceml" in options.variants:
        _traceml().init(mode="auto")
    measured = measure(options)
    if dist.get_rank() == 0:
        Path(options.folder, "blocks.json").write_text(json.dumps(measured), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # ranks of torch 2.13 on gloo sometimes abort in an orderly exit, also without us


if __name__ == "__main__":
    main()
