"""DD510 wrong-scaling."""

from __future__ import annotations

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.modelevents import Rescaled
from ddpdoctor.tracefile import Run
from tests.builders import result_of
from tests.model_builders import LOOKS, trained, with_facts


def job(ratio: float, ranks: int = 4, *, forwards: int = 1, tensors: int = 4) -> Run:
    def facts(_rank: int) -> list[Rescaled]:
        return [Rescaled(0, sync, forwards, (ratio,) * tensors) for sync in LOOKS]

    return with_facts(trained(ranks), facts)


def test_a_second_sum_over_ranks() -> None:
    (finding,) = result_of("DD510", job(4.0)).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.culprits == (0, 1, 2, 3)
    assert "are multiplied by 4, the number of ranks" in finding.message
    assert "Leave out the all-reduce" in finding.fix


def test_a_second_division() -> None:
    (finding,) = result_of("DD510", job(0.25)).findings

    assert "are divided by 4, the number of ranks" in finding.message


def test_dividing_by_the_batches_accumulated_is_healthy() -> None:
    assert result_of("DD510", job(0.25, forwards=4)).outcome is Outcome.CLEAN


@pytest.mark.parametrize("ratio", [1.0, 0.37, 1 / 65536, 4.1])
def test_clipping_unscaling_and_leaving_alone_are_healthy(ratio: float) -> None:
    assert result_of("DD510", job(ratio)).outcome is Outcome.CLEAN


def test_clipping_to_a_quarter_in_one_step_is_healthy() -> None:
    run = with_facts(
        trained(4),
        lambda rank: [Rescaled(0, sync, 1, (1 / sync,) * 4) for sync in LOOKS],
    )

    assert result_of("DD510", run).outcome is Outcome.CLEAN


def test_tensors_that_were_scaled_differently_are_no_factor_of_all() -> None:
    run = with_facts(
        trained(), lambda rank: [Rescaled(0, sync, 1, (2.0, 1.0, 2.0)) for sync in LOOKS]
    )

    assert result_of("DD510", run).outcome is Outcome.CLEAN


def test_not_compared_is_not_clean() -> None:
    assert result_of("DD510", trained()).outcome is Outcome.SKIPPED
