"""DD505 non-finite."""

from __future__ import annotations

from typing import Any

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.modelevents import NonFinite
from ddpdoctor.tracefile import Run
from tests.builders import result_of
from tests.model_builders import trained, with_facts

GRADIENTS = ("last.bias", "last.weight", "first.bias", "first.weight")


def bad(sync: int, **changes: Any) -> NonFinite:
    seen: dict[str, Any] = {"output": False, "reduced": True, "parameters": GRADIENTS}
    seen |= {"parameter_count": 4, "weights": False, "stepped": True}
    return NonFinite(0, sync, sync - 1, **(seen | changes))


def job(*events: Any, ranks: int = 2) -> Run:
    """`events` give what each rank saw."""
    return with_facts(trained(ranks), lambda rank: [event(rank) for event in events])


def all_bad(sync: int):
    return lambda rank: bad(sync, output=True, weights=True)


def test_a_bad_batch_on_one_rank_is_where_it_began() -> None:
    run = job(lambda rank: bad(5, output=rank == 1), all_bad(6), ranks=3)

    (finding,) = result_of("DD505", run).findings

    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.culprits == (1,)
    assert finding.victims == (0, 2)
    assert "not finite from step 4 on" in finding.message
    assert "it began in the loss of rank 1" in finding.message
    assert "all-reduce `isfinite(loss)` first" in finding.fix


def test_a_rank_that_saw_it_only_in_its_own_loss_is_enough() -> None:
    """The others look at reduced gradients only now and then."""
    run = with_facts(trained(), lambda rank: [bad(5, output=True)] if rank == 0 else [])

    (finding,) = result_of("DD505", run).findings

    assert finding.culprits == (0,)


def test_all_losses_at_once_are_a_divergence() -> None:
    (finding,) = result_of("DD505", job(lambda rank: bad(7, output=True))).findings

    assert finding.culprits == ()
    assert "training diverged" in finding.message


def test_finite_losses_and_bad_gradients_name_the_last_parameter() -> None:
    run = job(lambda rank: bad(8, parameters=GRADIENTS[2:], parameter_count=2))

    (finding,) = result_of("DD505", run).findings

    assert finding.confidence is Confidence.LIKELY
    assert "arose within a backward or in the reduction" in finding.message
    assert "first.bias" in finding.message


def test_weights_that_were_bad_already_are_no_rank_of_the_loss() -> None:
    (finding,) = result_of("DD505", job(all_bad(1))).findings

    assert "its weights were not finite already" in finding.message


def test_a_scaler_that_skips_and_goes_on_is_healthy() -> None:
    events = [lambda rank, sync=sync: bad(sync, output=True, stepped=False) for sync in (1, 2, 3)]

    assert result_of("DD505", job(*events)).outcome is Outcome.CLEAN


def test_a_scaler_that_skips_every_step_to_the_end_is_not() -> None:
    events = [
        lambda rank, sync=sync: bad(sync, output=True, stepped=False) for sync in range(5, 33)
    ]

    (finding,) = result_of("DD505", job(*events)).findings

    assert "since then every step is skipped" in finding.fix


def test_finite_training_is_clean() -> None:
    assert result_of("DD505", trained()).outcome is Outcome.CLEAN
