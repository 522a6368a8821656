"""DD305 same-order-every-epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.tracefile import Run
from tests.builders import StepTimes, one_pass, own_loader, result_of, simulate, with_ranks

SHUFFLED = tuple(Random(0).sample(range(1000), 16))


def run_with(
    orders: Callable[[int, int], Sequence[int]],
    epochs: int = 3,
    first_indices: Sequence[int] = SHUFFLED,
    **facts,
) -> Run:
    """A run in which the order of each rank and epoch has these hashes."""

    def add(trace):
        passes = tuple(
            one_pass(
                8,
                epoch=epoch,
                order=tuple(orders(trace.info.rank, epoch)),
                first_indices=tuple(first_indices),
            )
            for epoch in range(epochs)
        )
        own = own_loader(trace, **{"shuffle": True} | facts)
        return replace(trace, epochs=passes, loaders={0: own})

    return with_ranks(simulate(lambda r, s: StepTimes(), 2, 12), add)


def forgotten(rank: int, epoch: int) -> Sequence[int]:
    return [rank, rank + 1, rank + 2, rank + 3]


def healthy(rank: int, epoch: int) -> Sequence[int]:
    return [100 * epoch + rank, 100 * epoch + 1, 100 * epoch + 2]


def test_set_epoch_was_forgotten() -> None:
    (finding,) = result_of("DD305", run_with(forgotten)).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert finding.culprits == (0, 1)
    assert "in each of 3 epochs" in finding.message
    assert "stays 0: call sampler.set_epoch(epoch)" in finding.fix


def test_another_order_each_epoch_is_clean() -> None:
    assert result_of("DD305", run_with(healthy)).outcome is Outcome.CLEAN


def test_one_rank_forgot_it() -> None:
    def orders(rank: int, epoch: int) -> Sequence[int]:
        return forgotten(rank, epoch) if rank else healthy(rank, epoch)

    assert result_of("DD305", run_with(orders)).findings[0].culprits == (1,)


def test_an_epoch_that_was_left_early_is_compared_as_far_as_it_goes() -> None:
    def orders(rank: int, epoch: int) -> Sequence[int]:
        return forgotten(rank, epoch)[: 4 - epoch]

    assert result_of("DD305", run_with(orders)).outcome is Outcome.FINDINGS


def test_the_order_of_the_dataset_is_meant() -> None:
    rising = run_with(forgotten, first_indices=range(0, 32, 2), shuffle=None)
    said = run_with(forgotten, shuffle=False)

    assert result_of("DD305", rising).outcome is Outcome.CLEAN
    assert result_of("DD305", said).outcome is Outcome.CLEAN


def test_a_sampler_that_does_not_say_whether_it_shuffles_is_info() -> None:
    (finding,) = result_of("DD305", run_with(forgotten, shuffle=None, sampler="Mine")).findings

    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)


def test_a_random_sampler_that_is_seeded_anew() -> None:
    run = run_with(forgotten, sampler="RandomSampler", sampler_replicas=None, sampler_rank=None)

    (finding,) = result_of("DD305", run).findings

    assert finding.severity is Severity.WARNING
    assert "manual_seed" in finding.fix


def test_some_equal_epochs_among_others_are_clean() -> None:
    def orders(rank: int, epoch: int) -> Sequence[int]:
        return forgotten(rank, epoch) if epoch < 2 else healthy(rank, epoch)

    assert result_of("DD305", run_with(orders)).outcome is Outcome.CLEAN


@pytest.mark.parametrize(("epochs", "orders"), [(1, forgotten), (3, lambda rank, epoch: [])])
def test_one_epoch_or_a_stream_is_skipped(epochs: int, orders) -> None:
    assert result_of("DD305", run_with(orders, epochs)).outcome is Outcome.SKIPPED
