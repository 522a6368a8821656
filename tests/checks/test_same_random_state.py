"""DD308 same-random-state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.deliveries import RandomStates
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.tracefile import Run
from tests.builders import (
    StepTimes,
    drawn,
    one_pass,
    own_loader,
    result_of,
    simulate,
    with_ranks,
)

Seed = Callable[[int], int]


def alike(rank: int) -> int:
    return 1


def by_rank(rank: int) -> int:
    return 1 + rank


def run_with(seed: Seed, *, loading: bool = False, training: bool = False, **facts) -> Run:
    """Torch's state, from which loading or training draws or not; numpy's and Python's stay."""

    def add(trace):
        looks = []
        state = 10_000 * seed(trace.info.rank)
        for batch in (2, 4, 8):
            states = []
            for draws in (False, loading, training):
                state += draws
                states.append((state, 5, 6))
            looks.append(RandomStates(0, 0, batch, *states))
        own = own_loader(trace, **facts)
        return replace(trace, loaders={0: own}, random_states=tuple(looks))

    return with_ranks(simulate(lambda r, s: StepTimes(), 3, 12), add)


def with_workers(seed: Seed, *, augmented: bool) -> Run:
    def add(trace):
        rank = trace.info.rank
        seen = tuple(
            replace(
                drawn(range(100), lambda index, epoch=epoch: (index + 1000 * epoch * augmented,)),
                epoch=epoch,
            )
            for epoch in range(2)
        )
        passes = tuple(one_pass(12, epoch=epoch, base_seed=seed(rank)) for epoch in range(2))
        return replace(trace, drawn=seen, epochs=passes)

    return with_ranks(run_with(by_rank, workers=2), add)


def test_augmentation_in_the_process_from_one_seed() -> None:
    (finding,) = result_of("DD308", run_with(alike, loading=True)).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert finding.culprits == (0, 1, 2)
    assert finding.evidence[0].value == "torch"
    assert "seed + rank" in finding.fix


def test_only_ranks_with_the_same_state_are_named() -> None:
    run = run_with(lambda rank: 1 if rank != 1 else 9, loading=True)

    assert result_of("DD308", run).findings[0].culprits == (0, 2)


@pytest.mark.parametrize(("loading", "training"), [(True, False), (False, True), (True, True)])
def test_seeds_by_rank_are_clean(loading: bool, training: bool) -> None:
    run = run_with(by_rank, loading=loading, training=training)

    assert result_of("DD308", run).outcome is Outcome.CLEAN


def test_one_seed_that_nothing_draws_from_is_clean() -> None:
    """As in most jobs: the seed was for the model's weights."""
    assert result_of("DD308", run_with(alike)).outcome is Outcome.CLEAN


def test_dropout_from_one_seed_is_info() -> None:
    (finding,) = result_of("DD308", run_with(alike, training=True)).findings

    assert finding.severity is Severity.INFO
    assert "in training" in finding.message


def test_what_a_sampler_of_ones_own_draws_may_have_to_agree() -> None:
    run = run_with(alike, loading=True, sampler="BucketSampler")

    assert result_of("DD308", run).outcome is Outcome.CLEAN


def test_workers_with_one_seed_and_augmented_samples() -> None:
    (finding,) = result_of("DD308", with_workers(alike, augmented=True)).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.culprits == (0, 1, 2)


@pytest.mark.parametrize(("seed", "augmented"), [(alike, False), (by_rank, True)])
def test_workers_that_draw_nothing_or_each_from_its_own_seed(seed: Seed, augmented: bool) -> None:
    assert result_of("DD308", with_workers(seed, augmented=augmented)).outcome is Outcome.CLEAN


def test_without_looks_it_is_skipped() -> None:
    assert result_of("DD308", simulate(lambda r, s: StepTimes())).outcome is Outcome.SKIPPED
