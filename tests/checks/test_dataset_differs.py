"""DD307 dataset-differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.deliveries import RandomStates
from ddpdoctor.events import DrawnIndices, Held
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

SIZE = 200


def run_with(
    samples: Callable[[int, int, int], int] | None = None,
    holdings: Callable[[int], dict[str, Held]] = lambda rank: {},
    ranks: int = 2,
    **facts: Callable[[int], object],
) -> Run:
    """Three epochs that DistributedSamplers split; a sample's content by rank, index, epoch."""

    def add(trace):
        rank = trace.info.rank
        passes = tuple(an_epoch(rank, epoch) for epoch in range(3)) if samples else ()
        own = own_loader(trace, holdings=holdings(rank), **{k: of(rank) for k, of in facts.items()})
        return replace(trace, loaders={0: own}, drawn=passes)

    def an_epoch(rank: int, epoch: int) -> DrawnIndices:
        order = Random(epoch).sample(range(SIZE), SIZE)[rank::ranks]
        made = drawn(order, lambda index: (samples(rank, index, epoch),))
        return replace(made, epoch=epoch)

    return with_ranks(simulate(lambda r, s: StepTimes(), ranks, 12), add)


def of_a_shuffled_list(rank: int, index: int, epoch: int) -> int:
    return Random(rank).sample(range(SIZE), SIZE)[index]


def the_same(rank: int, index: int, epoch: int) -> int:
    return index + 7


def augmented(rank: int, index: int, epoch: int) -> int:
    return Random(f"{rank} {index} {epoch}").getrandbits(32)


def test_another_length_on_one_rank() -> None:
    run = run_with(dataset_length=lambda rank: 107 if rank == 2 else 103, ranks=4)

    (finding,) = result_of("DD307", run).findings

    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.culprits == (2,)
    assert "103 samples on some ranks and 107 on others" in finding.message


def test_lists_shuffled_on_each_rank_for_itself() -> None:
    (finding,) = result_of("DD307", run_with(of_a_shuffled_list)).findings

    assert finding.confidence is Confidence.CERTAIN
    assert finding.culprits == (0, 1)


def test_it_shows_in_the_first_epoch_too() -> None:
    """Samples of one rank turn up at other indices on the other."""
    run = with_ranks(
        run_with(of_a_shuffled_list), lambda trace: replace(trace, drawn=trace.drawn[:1])
    )

    assert result_of("DD307", run).findings[0].confidence is Confidence.CERTAIN


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_made_of_the_same_random_numbers_are_another_matter(
    workers: int, epochs: int
) -> None:
    """Drawn when loaded, from one seed: equal at the same place of an epoch, not at one index."""

    def add(trace):
        passes = []
        for each in trace.drawn[:epochs]:
            place = {index: at for at, index in enumerate(each.indices)}
            contents = [(1000 * each.epoch + place[index],) for index in each.indices]
            passes.append(replace(each, contents=tuple(contents)))
        moved = [
            RandomStates(0, 0, at, (at, 1, 1), (at + 50, 1, 1), (at + 50, 1, 1)) for at in (2, 4)
        ]
        return replace(
            trace,
            drawn=tuple(passes),
            loaders={0: replace(trace.loaders[0], workers=workers)},
            random_states=() if workers else tuple(moved),
            epochs=(one_pass(10, base_seed=7),),
        )

    result = result_of("DD307", with_ranks(run_with(the_same), add))

    assert result.outcome is Outcome.SKIPPED


def test_the_same_samples_everywhere_are_clean() -> None:
    assert result_of("DD307", run_with(the_same)).outcome is Outcome.CLEAN


@pytest.mark.parametrize(
    ("sums", "severity", "confidence"),
    [
        ((9, 9), Severity.ERROR, Confidence.LIKELY),  # the same items in another order
        ((None, None), Severity.WARNING, Confidence.POSSIBLE),  # too many to look at all
        ((8, 9), Severity.INFO, Confidence.POSSIBLE),  # other items
    ],
)
def test_lists_that_differ_where_samples_could_not_be_compared(
    sums: tuple[int | None, int | None], severity: Severity, confidence: Confidence
) -> None:
    def paths(rank: int) -> dict[str, Held]:
        return {"paths": Held(1, sums[0]) if rank != 1 else Held(2, sums[1])}

    (finding,) = result_of("DD307", run_with(augmented, paths, ranks=3)).findings

    assert (finding.severity, finding.confidence) == (severity, confidence)
    assert finding.culprits == (1,)


def test_data_made_at_random_on_each_rank_is_info() -> None:
    """As `TensorDataset(torch.randn(200, 8))` without a seed."""
    run = run_with(
        lambda rank, index, epoch: 1000 * rank + index, lambda rank: {"t": Held(rank, rank)}
    )

    (finding,) = result_of("DD307", run).findings

    assert finding.severity is Severity.INFO
    assert "other samples at the same indices" in finding.message


def test_a_random_split_without_a_seed_is_told_how_to_get_one() -> None:
    """The training subset of a public example: each rank holds back other samples."""
    run = run_with(
        augmented,
        lambda rank: {"indices": Held(rank, None)},
        dataset=lambda rank: "Subset",
    )

    (finding,) = result_of("DD307", run).findings

    assert finding.severity is Severity.WARNING
    assert "generator=torch.Generator().manual_seed(0)" in finding.fix


def test_samples_decide_over_lists() -> None:
    """A list may hold something else, such as what each rank has cached."""
    run = run_with(the_same, lambda rank: {"cached": Held(rank, 1)})

    assert result_of("DD307", run).outcome is Outcome.CLEAN


def test_equal_lists_are_clean_though_samples_are_augmented() -> None:
    assert result_of("DD307", run_with(augmented, lambda rank: {"paths": Held(5, 5)})).outcome is (
        Outcome.CLEAN
    )


def test_augmented_samples_alone_are_skipped() -> None:
    assert result_of("DD307", run_with(augmented)).outcome is Outcome.SKIPPED


def test_shards_that_no_sampler_splits_may_differ() -> None:
    run = run_with(
        of_a_shuffled_list,
        lambda rank: {"paths": Held(rank, 1)},
        sampler_replicas=lambda rank: None,
        sampler_rank=lambda rank: None,
        dataset_length=lambda rank: 100 + rank,
    )

    assert result_of("DD307", run).outcome is Outcome.SKIPPED


def test_data_that_holds_a_sample_several_times_is_clean() -> None:
    run = run_with(lambda rank, index, epoch: index // 4)

    assert result_of("DD307", run).outcome in (Outcome.CLEAN, Outcome.SKIPPED)


def test_wrong_settings_of_the_sampler_go_first() -> None:
    run = run_with(of_a_shuffled_list, sampler_rank=lambda rank: 0)

    assert result_of("DD307", run).findings == ()
    assert result_of("DD303", run).outcome is Outcome.FINDINGS
