"""DD504 buffers-differ."""

from __future__ import annotations

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.modelevents import Digests, ModelInfo
from tests.builders import result_of
from tests.model_builders import Value, apart, digests, evaluated, model_info, same, trained

differ = apart(since=0)


def silent(_rank: int) -> ModelInfo:
    return model_info(arguments={"broadcast_buffers": "False"})


def held(value: Value):
    """Buffers at each look of the training, as recorded without broadcasting."""
    return lambda rank, sync: digests(rank, sync, value, 1)


def test_evaluating_by_the_inner_module_uses_each_ranks_own_statistics() -> None:
    (finding,) = result_of("DD504", evaluated(trained(), differ, wrapped=False)).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "norm.running_mean" in finding.message
    assert "the wrapped model's forward, which sends rank 0's, was not used" in finding.message
    assert "Evaluate through the wrapped model" in finding.fix


def test_without_broadcasting_the_evaluation_differs_for_certain() -> None:
    run = evaluated(trained(3, info=silent), apart(since=0, rank=2))

    (finding,) = result_of("DD504", run).findings

    assert finding.confidence is Confidence.CERTAIN
    assert finding.culprits == (2,)
    assert "broadcast_buffers=False" in finding.message


def test_without_broadcasting_training_is_looked_at_too() -> None:
    (finding,) = result_of("DD504", trained(info=silent, buffers=held(differ))).findings

    assert "from step 0 on" in finding.message


def test_synchronised_statistics_without_broadcasting_are_healthy() -> None:
    run = evaluated(trained(info=silent, buffers=held(same)), same)

    assert result_of("DD504", run).outcome is Outcome.CLEAN


def test_an_evaluation_by_the_wrapped_model_is_healthy() -> None:
    assert result_of("DD504", evaluated(trained(4), same)).outcome is Outcome.CLEAN


def test_training_alone_says_nothing_of_buffers() -> None:
    """They differ between forwards in every healthy run, and are not recorded then."""
    run = trained(buffers=lambda rank, sync: Digests())

    assert result_of("DD504", run).outcome is Outcome.SKIPPED


def test_an_evaluation_on_rank_0_alone_cannot_be_compared() -> None:
    run = evaluated(trained(), same)
    run.ranks[1].model.evaluations.clear()

    assert result_of("DD504", run).outcome is Outcome.SKIPPED


def test_ranks_that_learn_apart_are_no_finding_of_their_buffers() -> None:
    run = evaluated(trained(parameters=apart(since=1)), differ)

    result = result_of("DD504", run)

    assert result.outcome is Outcome.SKIPPED
    assert "DD501" in (result.reason or "")
