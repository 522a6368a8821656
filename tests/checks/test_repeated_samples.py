"""DD302 repeated-samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest

from ddpdoctor.analysis import overlap
from ddpdoctor.checks import Outcome
from ddpdoctor.deliveries import Evaluated
from ddpdoctor.events import INDEX_ITSELF, GroupInfo, Site
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.tracefile import Run
from tests.builders import (
    StepTimes,
    drawn,
    loader,
    own_loader,
    result_of,
    simulate,
    with_ranks,
)

Contents = Callable[[int], tuple[int, ...] | None]


def run_with(indices: Sequence[Sequence[int]], contents: Sequence[Contents] = (), **facts) -> Run:
    """A run in which each rank drew these indices."""
    contents = contents or [lambda index: (index, index)] * len(indices)

    def add(trace):
        rank = trace.info.rank
        own = drawn(indices[rank], contents[rank])
        return replace(trace, drawn=(own,), loaders={0: own_loader(trace, **facts)})

    return with_ranks(healthy(len(indices)), add)


def healthy(ranks: int) -> Run:
    return simulate(lambda rank, step: StepTimes(), ranks, 12)


def shards(*makers: Callable[[int, int], int]) -> list[Contents]:
    """Contents of two ranks: of each tensor, its value by rank and index."""
    return [
        lambda index, rank=rank: tuple(make(rank, index) for make in makers) for rank in range(2)
    ]


def image(rank: int, index: int) -> int:
    """Another on each rank: another shard, or augmented."""
    return 1000 * (rank + 1) + index


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


def test_a_sampler_with_wrong_settings_is_another_finding() -> None:
    run = run_with([range(100), range(100)], sampler_replicas=1, sampler_rank=0)

    assert result_of("DD302", run).outcome is Outcome.CLEAN
    assert result_of("DD303", run).outcome is Outcome.FINDINGS


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


@pytest.mark.parametrize("same", [True, False])
def test_equal_labels_tell_augmented_samples_only_where_these_resemble_each_other(
    same: bool,
) -> None:
    """Two shards may have the same labels in the same order."""
    labels = Random(0).choices(range(10), k=100)
    contents = shards(image, lambda rank, index: labels[index])

    def add(trace):
        own = Random(0 if same else trace.info.rank)
        levels = tuple(own.gauss(0, 1) for _ in range(100))
        (made,) = trace.drawn
        return replace(trace, drawn=(replace(made, levels=levels),))

    run = with_ranks(run_with([range(100), range(100)], contents, **NO_SAMPLER), add)
    (finding,) = result_of("DD302", run).findings

    assert finding.confidence is (Confidence.LIKELY if same else Confidence.POSSIBLE)
    assert finding.severity is (Severity.ERROR if same else Severity.INFO)


def test_images_that_are_flipped_or_not_are_the_same_samples() -> None:
    flips = [Random(rank).choices([0, 1000], k=100) for rank in range(2)]
    contents = shards(lambda rank, index: flips[rank][index] + index)

    (finding,) = result_of("DD302", run_with([range(100), range(100)], contents)).findings

    assert finding.confidence is Confidence.CERTAIN


@pytest.mark.parametrize("label", [lambda index: index // 10, lambda index: index % 10])
def test_shards_with_labels_in_the_same_order_are_left_open(label: Callable[[int], int]) -> None:
    contents = shards(image, lambda rank, index: label(index))

    (finding,) = result_of("DD302", run_with([range(100), range(100)], contents)).findings

    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)
    assert "does not tell whether they are the same" in finding.message


@pytest.mark.parametrize("same", [True, False])
def test_sorted_and_augmented_samples_are_told_by_how_bright_they_are(same: bool) -> None:
    """As a folder of images is sorted by class, and each class has a brightness of its own."""

    def add(trace):
        rank = trace.info.rank
        own = Random(0 if same else rank)
        classes = [Random(index // 40).gauss(0, 0.5) for index in range(400)]
        levels = [mean + own.gauss(0, 1) for mean in classes]
        noise = Random(100 + rank)
        seen = tuple(level + noise.gauss(0, 0.5) for level in levels)
        made = drawn(range(400), shards(image, lambda rank, index: index // 40)[rank])
        return replace(trace, drawn=(replace(made, levels=seen),), loaders={0: own_loader(trace)})

    (finding,) = result_of("DD302", with_ranks(healthy(2), add)).findings

    assert finding.confidence is (Confidence.LIKELY if same else Confidence.POSSIBLE)


@pytest.mark.parametrize("own_index", [lambda rank, index: INDEX_ITSELF, lambda r, index: index])
def test_shards_whose_samples_hold_their_index_are_no_certain_repeat(own_index) -> None:
    labels = [Random(rank).choices(range(10), k=100) for rank in range(2)]
    contents = shards(image, own_index, lambda rank, index: labels[rank][index])

    result = result_of("DD302", run_with([range(100), range(100)], contents))

    assert all(finding.severity is Severity.INFO for finding in result.findings)


def test_few_labels_of_two_classes_do_not_tell() -> None:
    contents = shards(lambda rank, index: index * 7 % 3 % 2)

    (finding,) = result_of("DD302", run_with([range(18), range(18)], contents)).findings

    assert finding.severity is Severity.INFO


def test_batches_that_cannot_be_taken_apart_leave_it_possible() -> None:
    run = run_with([range(100), range(100)], [lambda index: None] * 2, **NO_SAMPLER)

    (finding,) = result_of("DD302", run).findings

    assert finding.confidence is Confidence.POSSIBLE
    assert finding.severity is Severity.INFO


def test_an_epoch_with_too_few_contents_does_not_outvote_one_that_tells() -> None:
    def add(trace):
        known = drawn(range(100), shards(image)[trace.info.rank])
        unknown = replace(drawn(range(100), lambda index: None), epoch=1)
        return replace(trace, drawn=(known, unknown), loaders={0: own_loader(trace)})

    assert result_of("DD302", with_ranks(healthy(2), add)).outcome is Outcome.CLEAN


def test_loaders_with_one_cause_are_one_finding() -> None:
    def add(trace):
        epochs = tuple(replace(drawn(range(100)), loader=number) for number in range(3))
        infos = {number: loader(loader=number, **NO_SAMPLER) for number in range(3)}
        return replace(trace, drawn=epochs, loaders=infos)

    assert len(result_of("DD302", with_ranks(healthy(2), add)).findings) == 1


def test_loaders_of_one_number_that_are_not_the_same_are_not_compared() -> None:
    def add(trace):
        site = Site("/home/user/train.py", trace.info.rank, "train")
        return replace(trace, drawn=(drawn(range(100)),), loaders={0: own_loader(trace, site=site)})

    assert result_of("DD302", with_ranks(healthy(2), add)).outcome is Outcome.CLEAN


def test_only_ranks_that_reduce_together_are_compared() -> None:
    """Ranks 0 and 1 split a model between them, as do 2 and 3; both pairs get equal samples."""

    def add(trace, members):
        shared = drawn(range(100 * (trace.info.rank // 2), 100 * (trace.info.rank // 2 + 1)))
        group = next(GroupInfo("dp", ranks) for ranks in members if trace.info.rank in ranks)
        return replace(trace, drawn=(shared,), ddp_groups=(group,), loaders={0: own_loader(trace)})

    def run(*members):
        return with_ranks(healthy(4), lambda trace: add(trace, members))

    assert result_of("DD302", run((0, 2), (1, 3))).outcome is Outcome.CLEAN
    assert result_of("DD302", run((0, 1, 2, 3))).outcome is Outcome.FINDINGS
    assert result_of("DD302", run((0, 1), (2, 3))).findings[0].culprits == (0, 1, 2, 3)


def test_a_sampler_that_repeats_its_own_samples_is_skipped() -> None:
    """With replacement, by a class that does not say so."""

    def add(trace):
        draws = Random(trace.info.rank).choices(range(200), k=100)
        own = drawn(sorted(set(draws)))
        own = replace(own, drawn=100, repeats=100 - len(own.indices))
        return replace(trace, drawn=(own,), loaders={0: own_loader(trace)})

    result = result_of("DD302", with_ranks(healthy(2), add))

    assert result.outcome is Outcome.SKIPPED
    assert "with replacement" in (result.reason or "")


def test_sampling_with_replacement_is_skipped() -> None:
    run = run_with([range(100), range(100)], replacement=True)

    assert result_of("DD302", run).outcome is Outcome.SKIPPED


def test_without_indices_it_is_skipped() -> None:
    assert result_of("DD302", simulate(lambda r, s: StepTimes())).outcome is Outcome.SKIPPED


def test_many_ranks_are_compared_without_looking_at_every_pair() -> None:
    """Of 200 ranks, 100 to 199 draw what 0 to 99 drew."""
    shards = [range(100 * (rank % 100), 100 * (rank % 100) + 100) for rank in range(200)]
    with patch.object(overlap, "_overlap", wraps=overlap._overlap) as compared:
        (finding,) = result_of("DD302", run_with(shards, sampler_replicas=None)).findings

    assert finding.culprits == tuple(range(200))
    assert compared.call_count == 100


def test_many_ranks_with_a_part_each_are_clean() -> None:
    run = run_with([range(100 * rank, 100 * rank + 100) for rank in range(200)])

    assert result_of("DD302", run).outcome is Outcome.CLEAN


def evaluated(samples: Sequence[int], length: int, **changes: object) -> Run:
    """Each rank went through a loader of evaluation and drew so many samples."""

    def add(trace):
        info = own_loader(trace, dataset_length=length, **{"sampler_replicas": 3} | changes)
        return replace(trace, evaluated=(Evaluated(info, samples[trace.info.rank]),))

    return with_ranks(healthy(len(samples)), add)


def test_padding_of_an_evaluation_is_a_hint() -> None:
    (finding,) = result_of("DD302", evaluated([4, 4, 4], 10)).findings

    assert finding.severity is Severity.INFO
    assert "2 of 12 samples that the ranks evaluate are duplicates: 10 samples" in finding.message
    assert "Leave the padding out" in finding.fix
    assert finding.culprits == (0, 1, 2)


@pytest.mark.parametrize(
    ("samples", "length", "changes"),
    [
        ([4, 4, 4], 12, {}),
        ([4, 3, 3], 10, {}),  # a sampler that does not fill up
        ([10, 10, 10], 10, {}),  # each evaluates all
        ([334, 334, 334], 1000, {}),  # too little to move a score
        ([4, 4], 10, {}),  # of a rank that did not record it
        ([4, 4, 4], 10, {"sampler_rank": 0}),
    ],
    ids=["even", "unpadded", "whole", "little", "missing", "one share"],
)
def test_evaluations_without_padding_worth_telling(samples, length: int, changes) -> None:
    assert result_of("DD302", evaluated(samples, length, **changes)).findings == ()
