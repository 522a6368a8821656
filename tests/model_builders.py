"""Model facts of recorded runs without training: values are computed from rank and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from typing import Any

from ddpdoctor.events import GroupInfo
from ddpdoctor.modelevents import (
    Batches,
    BatchRun,
    Digests,
    EvaluationSample,
    ModelFact,
    ModelInfo,
    ModelSample,
    OptimizerInfo,
    WatchedTensor,
)
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import StepTimes, simulate, with_ranks

NAMES = ("first.weight", "first.bias", "last.weight", "last.bias")
PLACES = tuple(range(len(NAMES)))
LOOKS = (1, 2, 4, 8, 16, 32)
Value = Callable[[int, int, int], float]  # of rank, reduction and tensor


def same(_rank: int, sync: int, place: int) -> float:
    """As on healthy ranks: it changes from step to step, and not from rank to rank."""
    return 1 + sync + 100.0 * place


def apart(since: int, rank: int = 1, by: float = 0.5, places: Sequence[int] = PLACES) -> Value:
    """Values of which one rank has others from a reduction on."""

    def value(r: int, sync: int, place: int) -> float:
        usual = same(r, sync, place)
        return usual * (1 + by) if r == rank and sync >= since and place in places else usual

    return value


def digests(rank: int, sync: int, value: Value, count: int = len(NAMES)) -> Digests:
    sizes = [value(rank, sync, place) for place in range(count)]
    return Digests(
        tuple(range(count)),
        tuple(abs(hash(size)) % 2**60 for size in sizes),
        tuple(None if isnan(size) else size for size in sizes),
    )


def model_info(**changes: Any) -> ModelInfo:
    tensors = tuple(
        WatchedTensor(place, name, "4x4", "float32", True, True) for place, name in enumerate(NAMES)
    )
    buffers = (WatchedTensor(0, "norm.running_mean", "4", "float32"),)
    arguments = {"find_unused_parameters": "False", "broadcast_buffers": "True"}
    info = ModelInfo(
        0, "Net", "0", len(tensors), len(buffers), 40, 7, 8, arguments, tensors, buffers
    )
    return replace(info, **changes)


def sample(rank: int, sync: int, **changes: Any) -> ModelSample:
    made = ModelSample(
        0, sync, sync - 1, sync, sync - 1,
        digests(rank, sync, same), digests(rank, sync, same), PLACES, rates=(0.1,),
    )  # fmt: skip
    return replace(made, **changes)


def trained(
    ranks: int = 2,
    *,
    parameters: Value = same,
    gradients: Value = same,
    looks: Sequence[int] = LOOKS,
    info: Callable[[int], ModelInfo] = lambda rank: model_info(),
    **of_sample: Callable[[int, int], Any],
) -> Run:
    """A run of one model; `of_sample` gives fields of a sample by rank and reduction."""
    run = simulate(lambda rank, step: StepTimes(), ranks, 12)

    def add(trace: RankTrace) -> RankTrace:
        rank = trace.info.rank
        facts: list[ModelFact] = [
            info(rank),
            OptimizerInfo(0, "SGD", (0,), {"lr": "0.1", "momentum": "0"}),
            Batches(0, (BatchRun(1, looks[-1], 8, 64, 1),)),
        ]
        for sync in looks:
            changes = {name: of(rank, sync) for name, of in of_sample.items()}
            facts.append(
                sample(
                    rank,
                    sync,
                    parameters=digests(rank, sync, parameters),
                    gradients=digests(rank, sync, gradients),
                    **changes,
                )
            )
        for fact in facts:
            trace.model.add(fact)
        return replace(trace, ddp_groups=(GroupInfo("0", tuple(range(ranks))),))

    return with_ranks(run, add)


def with_facts(run: Run, facts: Callable[[int], Sequence[ModelFact]]) -> Run:
    """The run with more facts of each rank; those of one number replace the earlier ones."""
    for trace in run.ranks:
        for fact in facts(trace.info.rank):
            trace.model.add(fact)
    return run


def on_rank(rank: int, *facts: ModelFact) -> Callable[[int], Sequence[ModelFact]]:
    return lambda r: facts if r == rank else ()


def evaluation(rank: int, sync: int, value: Value, *, wrapped: bool = True) -> EvaluationSample:
    return EvaluationSample(0, sync, digests(rank, sync, value, 1), wrapped)


def evaluated(run: Run, value: Value, *, wrapped: bool = True, syncs: Sequence[int] = (10,)) -> Run:
    make = partial(evaluation, value=value, wrapped=wrapped)
    return with_facts(run, lambda rank: [make(rank, sync) for sync in syncs])
