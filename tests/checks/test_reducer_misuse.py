"""DD509 reducer-misuse."""

from __future__ import annotations

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import Site
from ddpdoctor.findings import Severity
from ddpdoctor.modelevents import ChangeKind, FailureKind, ModelChange, ModelFailure
from tests.builders import result_of
from tests.checks.test_parameters_differ import found
from tests.model_builders import apart, model_info, on_rank, trained, with_facts

LINE = Site("/home/user/train.py", 40, "train")


def change(kind: ChangeKind, *names: str) -> ModelChange:
    return ModelChange(0, 4, kind, names, len(names))


@pytest.mark.parametrize(
    ("kind", "said", "fix"),
    [
        (FailureKind.READY_TWICE, "first.bias was marked ready twice", "use_reentrant=False"),
        (FailureKind.IN_PLACE, "changed in place", "broadcast_buffers=False"),
        (FailureKind.GRAPH_CHANGED, "static_graph=True forbids", "without static_graph"),
    ],
)
def test_an_error_that_ended_the_training(kind: FailureKind, said: str, fix: str) -> None:
    failure = ModelFailure(kind, 0, 3, ("first.bias",), LINE)

    (finding,) = result_of("DD509", with_facts(trained(), on_rank(1, failure))).findings

    assert finding.severity is Severity.ERROR
    assert finding.culprits == (1,)
    assert said in finding.message
    assert fix in finding.fix
    assert (finding.where[0].rank, finding.where[0].line) == (1, 40)


def test_a_layer_that_was_replaced_explains_what_differs() -> None:
    run = with_facts(
        trained(gradients=apart(4, places=(2,)), parameters=apart(8)),
        lambda rank: [change(ChangeKind.REPLACED, "last.weight")],
    )

    (finding,) = result_of("DD509", run).findings

    assert found(run) == {"DD509"}
    assert "were replaced by new ones after it was wrapped, on ranks 0 and 1" in finding.message
    assert [e.what for e in finding.evidence[1:]] == [
        "gradients differ between ranks", "parameters differ between ranks",
    ]  # fmt: skip


def test_unfreezing_after_wrapping_trains_each_rank_alone() -> None:
    run = with_facts(trained(), lambda rank: [change(ChangeKind.UNFROZEN, "first.weight")])

    (finding,) = result_of("DD509", run).findings

    assert finding.severity is Severity.ERROR
    assert "wrap it then" in finding.fix


def test_freezing_after_wrapping_is_a_hint_where_ddp_searches_for_it() -> None:
    def freezing(find: str):
        info = model_info(arguments={"find_unused_parameters": find})
        run = trained(info=lambda rank: info)
        return with_facts(run, lambda rank: [change(ChangeKind.FROZEN, "first.weight")])

    assert result_of("DD509", freezing("True")).findings[0].severity is Severity.INFO
    assert result_of("DD509", freezing("False")).findings[0].severity is Severity.WARNING


def test_an_error_with_several_models_is_told_once() -> None:
    run = with_facts(trained(), lambda rank: [model_info(model=1, name="Critic")])
    failure = ModelFailure(FailureKind.READY_TWICE, None, 0, ())

    result = result_of("DD509", with_facts(run, lambda rank: [failure]))

    assert len(result.findings) == 1


def test_a_model_that_stays_as_it_was_is_clean() -> None:
    assert result_of("DD509", trained()).outcome is Outcome.CLEAN


def test_backwards_within_the_backward_explain_gradients_that_differ() -> None:
    run = trained(gradients=apart(1, places=(2,)), parameters=apart(2), nested=lambda r, s: 2)

    (finding,) = result_of("DD509", run).findings

    assert found(run) == {"DD509"}
    assert finding.severity is Severity.ERROR
    assert "(last.weight), and backwards ran within its backward" in finding.message
    assert "use_reentrant=False" in finding.fix
    assert finding.evidence[0].value == 2


@pytest.mark.parametrize(
    ("nested", "hook"), [(0, None), (1, None), (2, "my_hook")], ids=["none", "one", "hook"]
)
def test_what_else_makes_gradients_differ_is_another_finding(nested: int, hook: str | None) -> None:
    """One checkpoint alone, or a communication hook, which may be the cause."""
    info = model_info(arguments={"communication hook": hook} if hook else {})
    run = trained(gradients=apart(1), nested=lambda r, s: nested, info=lambda rank: info)

    assert found(run) == {"DD502"}


def test_reentrant_checkpointing_of_layers_that_pass_once_is_healthy() -> None:
    assert found(trained(nested=lambda r, s: 12)) == set()
