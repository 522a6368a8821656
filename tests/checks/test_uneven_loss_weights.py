"""DD507 uneven-loss-weights."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.modelevents import Batches, BatchRun, Loss, LossTerm
from ddpdoctor.tracefile import Run
from tests.builders import result_of
from tests.model_builders import LOOKS, trained, with_facts

Size = Callable[[int, int], int]  # of rank and reduction


def job(samples: Size, *, length: Size = lambda r, s: 8, forwards: int = 1, syncs: int = 60) -> Run:
    run = trained()
    for trace in run.ranks:
        rank = trace.info.rank
        trace.model.batches.clear()
        for sync in range(1, syncs + 1):
            n = samples(rank, sync)
            trace.model.add(Batches(0, (BatchRun(sync, 1, n, n * length(rank, sync), forwards),)))
    return run


def test_the_bias_is_a_number() -> None:
    (finding,) = result_of("DD507", job(lambda rank, sync: (10, 90)[rank])).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.culprits == (0,)
    assert "a sample on rank 0 counts 9.0 times as much as one on rank 1" in finding.message
    assert "100 % of steps" in finding.message
    assert "multiply it by 2" in finding.fix


def test_sizes_that_take_turns_have_no_favoured_rank() -> None:
    (finding,) = result_of("DD507", job(lambda rank, sync: (8, 16)[(rank + sync) % 2])).findings

    assert finding.culprits == ()
    assert "2.0 times" in finding.message


@pytest.mark.parametrize("epoch", [10, 30])
def test_a_smaller_last_batch_is_healthy(epoch: int) -> None:
    run = job(lambda rank, sync: 3 if rank and sync % epoch == 0 else 8)

    assert result_of("DD507", run).outcome is Outcome.CLEAN


def test_equal_batches_of_different_accumulation_are_equal_weights() -> None:
    assert result_of("DD507", job(lambda rank, sync: 32, forwards=4)).outcome is Outcome.CLEAN


def test_lengths_of_padded_text_are_a_hint() -> None:
    run = job(lambda rank, sync: 8, length=lambda rank, sync: (100, 400)[(rank + sync) % 2])

    (finding,) = result_of("DD507", run).findings

    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)
    assert "4.0 times" in finding.message


def test_lengths_that_vary_a_little_are_healthy() -> None:
    draw = random.Random(0)
    run = job(lambda rank, sync: 8, length=lambda rank, sync: draw.randint(90, 110))

    assert result_of("DD507", run).outcome is Outcome.CLEAN


def test_long_runs_are_compared_at_some_reductions() -> None:
    run = trained()
    for trace in run.ranks:
        trace.model.batches[0] = [BatchRun(1, 10**9, 8 + 8 * trace.info.rank, 64, 1)]

    (finding,) = result_of("DD507", run).findings

    assert "2.0 times" in finding.message


def test_batches_without_samples_are_left_out() -> None:
    run = job(lambda rank, sync: 0 if rank and sync % 2 else 8)

    assert result_of("DD507", run).outcome is Outcome.CLEAN


def averaging(
    run: Run, tokens: Size, factor: Callable[[int, int], float] | None = None, looks: int = 6
) -> Run:
    """The run with the losses that were looked at: means of so many tokens."""

    def facts(rank: int) -> list[Loss]:
        return [
            Loss(0, sync, 1, (LossTerm(
                "NllLossBackward0", (factor(rank, sync),) if factor else (), tokens(rank, sync),
                True,
            ),))
            for sync in LOOKS[:looks]
        ]  # fmt: skip

    return with_facts(run, facts)


def test_a_token_weighs_more_on_a_rank_with_fewer() -> None:
    lengths = (10, 90)
    run = job(lambda rank, sync: 8, length=lambda rank, sync: lengths[rank])

    (finding,) = result_of("DD507", averaging(run, lambda r, s: 8 * lengths[r])).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.culprits == (0,)
    assert "80 on rank 0, 720 on rank 1" in finding.message
    assert "one on rank 0 counts 9.0 times as much as one on rank 1" in finding.message
    assert "tokens of all ranks" in finding.fix


def test_padding_that_the_loss_ignores_is_seen_behind_equal_shapes() -> None:
    run = averaging(job(lambda rank, sync: 8), lambda rank, sync: (40, 400)[rank])

    (finding,) = result_of("DD507", run).findings

    assert "counts 10.0 times" in finding.message


def test_a_loss_that_is_divided_by_all_ranks_tokens_is_healthy() -> None:
    """Whatever the sizes of batches and their lengths."""
    tokens = lambda rank, sync: (80, 720)[rank]
    run = averaging(
        job(lambda rank, sync: (8, 72)[rank]), tokens, lambda r, s: 2 * tokens(r, s) / 800
    )

    assert result_of("DD507", run).outcome is Outcome.CLEAN


def test_lengths_that_differ_by_chance_favour_no_rank() -> None:
    draw = random.Random(0)
    run = averaging(
        job(lambda rank, sync: 8, length=lambda rank, sync: draw.randint(10, 90)),
        lambda rank, sync: 8 * draw.randint(30, 70),
    )

    assert result_of("DD507", run).outcome is Outcome.CLEAN


def test_ranks_that_take_turns_are_a_hint() -> None:
    run = averaging(
        job(lambda rank, sync: 8), lambda rank, sync: (80, 400)[(rank + sync.bit_length()) % 2]
    )

    (finding,) = result_of("DD507", run).findings

    assert (finding.severity, finding.culprits) == (Severity.INFO, ())
    assert "5.0 times" in finding.message


def test_a_few_losses_tell_no_habit() -> None:
    run = averaging(job(lambda rank, sync: 8), lambda rank, sync: (80, 400)[rank], looks=4)

    assert result_of("DD507", run).outcome is Outcome.CLEAN
