"""DD302 repeated-samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.tracefile import Run
from tests.builders import StepTimes, drawn, loader, result_of, simulate, with_ranks

Contents = Callable[[int], tuple[int, ...] | None]


def run_with(indices: Sequence[Sequence[int]], contents: Sequence[Contents] = (), **facts) -> Run:
    """A run in which each rank drew these indices."""
    contents = contents or [lambda index: (index, index)] * len(indices)

    def add(trace):
        rank = trace.info.rank
        own = drawn(indices[rank], contents[rank])
        return replace(trace, drawn=(own,), loaders={0: loader(**facts)})

    return with_ranks(simulate(lambda rank, step: StepTimes(), len(indices), 12), add)


NO_SAMPLER = {"sampler": "RandomSampler", "sampler_replicas": None, "sampler_rank": None}


def test_every_rank_draws_the_whole_dataset() -> None:
    (finding,) = result_of("DD302", run_with([range(100), range(100)], **NO_SAMPLER)).findings

    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert finding.culprits == (0, 1)
    assert "share 99 %" in finding.message
    assert "sampler=DistributedSampler(dataset) (RandomSampler now)" in finding.fix


def test_only_the_overlapping_ranks_are_named() -> None:
    indices = [range(100), range(100, 200), range(200, 300), range(50, 150)]

    (finding,) = result_of("DD302", run_with(indices)).findings

    assert finding.culprits == (0, 1, 3)


def test_a_sampler_of_another_world_size() -> None:
    run = run_with([range(100), range(100)], sampler_replicas=1, sampler_rank=0)

    assert "made for 1 replicas as rank 0" in result_of("DD302", run).findings[0].fix


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_padding_of_a_distributed_sampler_is_no_repeat(ranks: int) -> None:
    """DistributedSampler fills up with the first samples, so that all ranks have as many."""
    total = 20 * ranks + 1
    padded = [*range(total), *range(ranks - 1)]

    run = run_with([padded[rank::ranks] for rank in range(ranks)])

    assert result_of("DD302", run).outcome is Outcome.CLEAN


def test_shards_with_equal_indices_of_other_data_are_no_repeat() -> None:
    contents = [lambda index, rank=rank: (1000 * rank + index, -rank) for rank in range(2)]

    run = run_with([range(100), range(100)], contents, **NO_SAMPLER)

    assert result_of("DD302", run).outcome is Outcome.CLEAN


def test_shards_whose_labels_have_two_values_agree_only_by_chance() -> None:
    labels = [Random(rank).choices([0, 1], k=100) for rank in range(2)]
    contents = [
        lambda index, rank=rank: (1000 * rank + index, labels[rank][index]) for rank in range(2)
    ]

    run = run_with([range(100), range(100)], contents, **NO_SAMPLER)

    assert result_of("DD302", run).outcome is Outcome.CLEAN


def test_augmented_images_with_equal_labels_are_the_same_samples() -> None:
    contents = [lambda index, rank=rank: (1000 * rank + index, index % 10) for rank in range(2)]

    (finding,) = result_of("DD302", run_with([range(100), range(100)], contents)).findings

    assert finding.confidence is Confidence.CERTAIN


def test_batches_that_cannot_be_taken_apart_leave_it_possible() -> None:
    run = run_with([range(100), range(100)], [lambda index: None] * 2, **NO_SAMPLER)

    (finding,) = result_of("DD302", run).findings

    assert finding.confidence is Confidence.POSSIBLE
    assert finding.severity is Severity.WARNING


def test_sampling_with_replacement_is_skipped() -> None:
    run = run_with([range(100), range(100)], replacement=True)

    assert result_of("DD302", run).outcome is Outcome.SKIPPED


def test_without_indices_it_is_skipped() -> None:
    assert result_of("DD302", simulate(lambda r, s: StepTimes())).outcome is Outcome.SKIPPED
