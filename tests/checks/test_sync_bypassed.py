"""DD508 sync-bypassed."""

from __future__ import annotations

from typing import Any

from ddpdoctor.checks import Outcome
from ddpdoctor.events import Site
from ddpdoctor.findings import Confidence
from ddpdoctor.modelevents import Unsynced, WatchedTensor
from tests.builders import result_of
from tests.checks.test_parameters_differ import found
from tests.model_builders import (
    Value,
    apart,
    digests,
    model_info,
    same,
    sample,
    trained,
    with_facts,
)

LINE = Site("/home/user/train.py", 51, "train")


def bypassed(rank: int, value: Value, steps: int = 32, **changes: Any) -> Unsynced:
    facts: dict[str, Any] = {"forwards": 0, "optimizer_steps": steps, "site": LINE}
    gradients = digests(rank, steps, value)
    return Unsynced(0, 1, 0, steps, gradients=gradients, **(facts | changes))


def test_a_loss_of_the_inner_module_is_never_reduced() -> None:
    run = with_facts(trained(looks=(1,)), lambda rank: [bypassed(rank, apart(since=0))])

    (finding,) = result_of("DD508", run).findings

    assert found(run) == {"DD508"}
    assert finding.confidence is Confidence.CERTAIN
    assert finding.culprits == (0, 1)
    assert "the forward of the wrapped Net was not called" in finding.message
    assert "not from `model.module(...)`" in finding.fix
    assert finding.where[0].line == 51


def test_no_sync_around_the_forward_alone() -> None:
    run = with_facts(
        trained(looks=(1,)), lambda rank: [bypassed(rank, apart(since=0), forwards=32)]
    )

    (finding,) = result_of("DD508", run).findings

    assert "no_sync was on in their forward" in finding.message
    assert "Leave `no_sync` before the last forward" in finding.fix


def test_no_sync_that_begins_after_the_forward_reduces_a_part_only() -> None:
    run = with_facts(
        trained(parameters=apart(2)),
        lambda rank: [bypassed(rank, apart(since=0), forwards=128, partly=True)],
    )

    (finding,) = result_of("DD508", run).findings

    assert found(run) == {"DD508"}
    assert "were reduced in part only, from optimizer step 1 on" in finding.message
    assert "no_sync was on in the last of their forwards" in finding.message
    assert "the last forward of an accumulation" in finding.fix


def test_gradients_that_the_script_reduces_by_itself_are_healthy() -> None:
    run = with_facts(trained(), lambda rank: [bypassed(rank, same)])

    assert result_of("DD508", run).outcome is Outcome.CLEAN


def test_looks_that_cannot_be_compared_are_likely() -> None:
    run = with_facts(trained(), lambda rank: [bypassed(rank, same, 4 * (rank + 1))])

    (finding,) = result_of("DD508", run).findings

    assert finding.confidence is Confidence.LIKELY


def test_hooks_that_are_dead_after_a_cast() -> None:
    run = trained(
        gradients=apart(since=2), parameters=apart(since=2),
        unreduced=lambda rank, sync: (0, 1, 2, 3) if sync > 1 else (),
    )  # fmt: skip

    (finding,) = result_of("DD508", run).findings

    assert found(run) == {"DD508"}
    assert finding.message.startswith("all gradients of Net are not reduced on ranks 0 and 1")
    assert "Wrap the model again after it was moved or cast" in finding.fix


def test_equal_times_of_two_backwards_by_chance_are_nothing() -> None:
    run = trained(unreduced=lambda rank, sync: (2,) if sync == 8 and rank else ())

    assert result_of("DD508", run).outcome is Outcome.CLEAN


def rest_of(value: Value):
    """Parameters that only the optimizer knows of."""
    tensors = (WatchedTensor(0, "parameter 0 of the optimizer", "4x2", "float32", True),)
    info = model_info(
        model=1, name="", parameters=tensors, parameter_count=1, buffers=(), arguments={}
    )
    return lambda rank: [
        info,
        *(
            sample(rank, sync, model=1, gradients=digests(rank, sync, value, 1), looked_at=())
            for sync in (1, 2, 4)
        ),
    ]


def test_a_head_outside_the_wrapped_model() -> None:
    run = with_facts(trained(), rest_of(apart(since=0)))

    (finding,) = result_of("DD508", run).findings

    assert found(run) == {"DD508"}
    assert "1 parameters of the optimizer belong to no DDP model" in finding.message
    assert finding.evidence[0].value == "4x2"


def test_a_head_whose_gradients_are_reduced_by_hand_is_healthy() -> None:
    assert found(with_facts(trained(), rest_of(same))) == set()


def test_reductions_alike_are_clean() -> None:
    assert result_of("DD508", trained(4)).outcome is Outcome.CLEAN
