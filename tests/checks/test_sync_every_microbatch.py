"""DD204 sync-every-microbatch."""

from __future__ import annotations

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.tracefile import Run
from tests.builders import result_of
from tests.model_builders import LOOKS, trained


def job(
    every: int, *, late: bool = False, steps_between: bool = False, zeroed: bool = False
) -> Run:
    """An optimizer step at every so many reductions."""
    return trained(
        optimizer_steps=lambda rank, sync: (sync - 1) // every,
        accumulated=lambda rank, sync: (sync - 1) % every > 0 and not (steps_between or zeroed),
        late_no_sync=lambda rank, sync: (sync * (every - 1) // every) * late,
    )


def test_each_of_four_micro_batches_is_reduced() -> None:
    (finding,) = result_of("DD204", job(4)).findings

    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.LIKELY
    assert "reduced 4 times for one optimizer step" in finding.message
    assert "forward of each micro-batch but the last" in finding.fix
    assert finding.lost_s is not None
    assert finding.lost_s > 0


def test_no_sync_around_the_backward_alone_is_certain() -> None:
    (finding,) = result_of("DD204", job(4, late=True)).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert "it does nothing there" in finding.message


@pytest.mark.parametrize(
    "run",
    [job(1), job(2, steps_between=True), job(2, zeroed=True), job(1, late=True)],
    ids=["each step", "of another model's loss", "skipped by a scaler", "never accumulated"],
)
def test_one_reduction_a_step_is_healthy(run: Run) -> None:
    assert result_of("DD204", run).outcome is Outcome.CLEAN


def test_few_looks_say_nothing() -> None:
    assert result_of("DD204", trained(looks=LOOKS[:3])).outcome is Outcome.SKIPPED
