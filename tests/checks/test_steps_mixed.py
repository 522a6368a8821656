"""DD506 steps-mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence
from ddpdoctor.tracefile import Run
from tests.builders import loader, one_pass, result_of, with_ranks
from tests.checks.test_parameters_differ import found
from tests.model_builders import apart, trained


def test_a_backward_that_one_rank_left_out() -> None:
    """An exception was caught in step 5: its forward had no backward."""
    run = trained(3, forwards=lambda rank, sync: sync + (rank == 2 and sync > 5))

    (finding,) = result_of("DD506", run).findings

    assert finding.culprits == (2,)
    assert finding.victims == (0, 1)
    assert finding.confidence is Confidence.LIKELY
    assert "rank 2 ran 1 forward of Net without a backward" in finding.message
    assert "in steps 4 to 7" in finding.message
    assert finding.evidence[0].value == "8 on rank 0, 8 on rank 1, 9 on rank 2"


def test_parameters_that_differ_then_are_its_consequence() -> None:
    run = trained(
        parameters=apart(since=8), forwards=lambda rank, sync: sync + (rank == 1 and sync > 5)
    )

    assert found(run) == {"DD506"}


def test_accumulating_alike_is_healthy() -> None:
    assert result_of("DD506", trained(forwards=lambda r, sync: 4 * sync)).outcome is Outcome.CLEAN


def test_other_micro_batches_in_every_step_are_no_mixing() -> None:
    """A rank that was short of memory halves its batches: each step has its own gradients."""
    run = trained(forwards=lambda rank, sync: sync * (2 if rank else 1))

    assert result_of("DD506", run).outcome is Outcome.CLEAN


def test_a_skipped_optimizer_step_is_no_mixing() -> None:
    run = trained(optimizer_steps=lambda rank, sync: sync - 1 - (rank == 1 and sync > 5))

    assert result_of("DD506", run).outcome is Outcome.CLEAN


def fed(syncs: Callable[[int, int], int], *, batches: int = 40, joined: bool = False) -> Run:
    """Two epochs of a loader; `syncs` are the reductions by rank and epoch when it has ended."""
    own = {0: loader(joined=joined)}

    def change(trace):
        rank = trace.info.rank
        epochs = tuple(
            one_pass(batches, epoch=epoch, last_sync=syncs(rank, epoch)) for epoch in range(2)
        )
        return replace(trace, loaders=own, epochs=epochs)

    return with_ranks(trained(), change)


def test_a_batch_that_one_rank_dropped_before_the_model_saw_it() -> None:
    run = fed(lambda rank, epoch: 40 * (epoch + 1) - (rank == 1 and epoch == 1))

    (finding,) = result_of("DD506", run).findings

    assert finding.culprits == (1,)
    assert "made 1 reduction fewer than the others of the 40 batches" in finding.message
    assert "epoch 1" in finding.message
    assert finding.where[0].rank == 1


def test_accumulating_otherwise_on_one_rank_drops_nothing() -> None:
    run = fed(lambda rank, epoch: 40 * (epoch + 1) // (1 + rank))

    assert result_of("DD506", run).outcome is Outcome.CLEAN


def test_equal_reductions_of_equal_batches_and_joined_loaders_are_healthy() -> None:
    equal = fed(lambda rank, epoch: 40 * (epoch + 1))
    joined = fed(lambda rank, epoch: 40 * (epoch + 1) - rank, joined=True)

    assert result_of("DD506", equal).outcome is Outcome.CLEAN
    assert result_of("DD506", joined).outcome is Outcome.CLEAN
