"""DD506 steps-mixed."""

from __future__ import annotations

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence
from tests.builders import result_of
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
