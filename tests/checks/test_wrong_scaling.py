"""DD510 wrong-scaling."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import Site
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.modelevents import Gathered, Loss, LossTerm, Rescaled, Summed
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


LINE = Site("/home/user/train.py", 21, "train")


def with_losses(
    factors: tuple[float, ...], *, ranks: int = 4, forwards: int = 1, mean: bool = True,
    site: Site | None = LINE,
) -> Run:  # fmt: skip
    term = LossTerm("NllLossBackward0", factors, 16.0 if mean else 1.0, mean)
    return with_facts(
        trained(ranks), lambda rank: [Loss(0, sync, forwards, (term,), site) for sync in LOOKS]
    )


@pytest.mark.parametrize(
    ("factors", "forwards"), [((4.0,), 1), ((4.0, 1 / 8), 8), ((0.5, 2.0, 4.0), 1)]
)
def test_a_mean_times_the_number_of_ranks(factors: tuple[float, ...], forwards: int) -> None:
    (finding,) = result_of("DD510", with_losses(factors, forwards=forwards)).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.culprits == (0, 1, 2, 3)
    assert "gradients are 4 times too large" in finding.message
    assert "Leave out the factor" in finding.fix
    assert finding.where[0].line == 21


def test_a_factor_that_the_script_does_not_name_for_the_ranks_is_a_hint() -> None:
    (finding,) = result_of("DD510", with_losses((4.0,), site=None)).findings

    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)
    assert "as many as there are ranks" in finding.message
    assert "if it is the number of ranks" in finding.fix


@pytest.mark.parametrize(
    "factors",
    [(), (0.25,), (4.0, 1 / 640), (16.0, 4.0, 1 / 64), (65536.0,), (4.0, 65536.0), (2.0, 2.0)],
    ids=str,
)
def test_other_weights_of_a_loss_are_healthy(factors: tuple[float, ...]) -> None:
    """Also those that divide by what all ranks have, and the scale of a loss scaler."""
    assert result_of("DD510", with_losses(factors)).outcome is Outcome.CLEAN


def test_a_sum_needs_the_number_of_ranks() -> None:
    assert result_of("DD510", with_losses((4.0,), mean=False)).outcome is Outcome.CLEAN


def summed(value: Callable[[int, int], float], *, ranks: int = 2, **by_sync: object) -> Run:
    """Sums of one number, given by rank and reduction, before the step of each look."""

    def facts(rank: int) -> list[Summed]:
        return [
            Summed("0", 10 * sync, sync, False, (value(rank, sync),), LINE, 0, sync,
                   tuple(by_sync["ratios"](sync)) if "ratios" in by_sync else ())
            for sync in LOOKS
        ]  # fmt: skip

    return with_facts(trained(ranks), facts)


def norm(sync: int) -> float:
    """Of the averaged gradients."""
    return 3.3 / (1 + 0.1 * sync)


def clipped(sync: int) -> list[float]:
    """By twice the square of the norm: its sum over two ranks."""
    return [0.5 / (2**0.5 * norm(sync))] * 4


def test_a_norm_that_is_summed_again() -> None:
    run = summed(lambda rank, sync: norm(sync) ** 2, ratios=clipped)

    (finding,) = result_of("DD510", run).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.culprits == (0, 1)
    assert "its square becomes 2 times too large" in finding.message
    assert "the local norm is the global one" in finding.fix
    assert finding.where[1].line == 21


@pytest.mark.parametrize(
    ("value", "ratios"),
    [
        (lambda rank, sync: norm(sync) ** 2 + rank, clipped),  # of parts of a model
        (lambda rank, sync: norm(sync), lambda sync: [1.0] * 4),  # told, after clipping
        (lambda rank, sync: 128.0, clipped),  # a count beside it
        (lambda rank, sync: norm(sync) ** 2, lambda sync: [0.3 + 0.01 * sync] * 4),
        (lambda rank, sync: norm(sync) ** 2, lambda sync: [0.5, 0.7]),
        (lambda rank, sync: norm(sync) ** 2, lambda sync: []),
    ],
    ids=["parts", "told", "count", "unrelated", "by tensor", "no step"],
)
def test_sums_before_the_step_that_are_healthy(value, ratios) -> None:
    assert result_of("DD510", summed(value, ratios=ratios)).outcome is Outcome.CLEAN


def totals(given: Callable[[int, int], float], ranks: int = 2) -> Run:
    """What is given to one sum, by rank and call, of the same tensor each time."""

    def facts(rank: int) -> list[Summed]:
        return [
            Summed("0", call, call, is_next, (0.0, given(rank, call)), LINE)
            for look in (1, 2, 4, 8, 16, 32)
            for call, is_next in ((look, False), (look + 1, True))
        ]

    return with_facts(trained(ranks), facts)


def in_place(rank: int, call: int, ranks: int = 2) -> float:
    """The last sum and 16 more."""
    total = 0.0
    for _ in range(call):
        total = total * ranks + 16
    return total + rank


def test_a_total_that_is_summed_in_place() -> None:
    (finding,) = result_of("DD510", totals(in_place)).findings

    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert "it grows 2 times each time" in finding.message
    assert "clone" in finding.fix
    assert finding.where[0].line == 21


@pytest.mark.parametrize(
    "given",
    [
        lambda rank, call: 16.0 * call,  # a total of which a copy is summed
        lambda rank, call: 16.0,  # a count of each step
        lambda rank, call: 2.3 / call + rank,  # a loss
        lambda rank, call: 0.0,
        lambda rank, call: 1.0 * (call >= 32),  # a flag
        lambda rank, call: 0.9**call * 1e6,
    ],
    ids=["copied", "count", "loss", "zero", "flag", "average"],
)
def test_sums_of_metrics_are_healthy(given: Callable[[int, int], float]) -> None:
    assert result_of("DD510", totals(given)).outcome is Outcome.CLEAN


def test_a_sum_that_one_rank_did_not_record_says_nothing() -> None:
    run = totals(in_place, ranks=3)
    run.ranks[2].model.summed.clear()

    assert result_of("DD510", run).outcome is Outcome.SKIPPED


def test_a_gather_without_gradient_is_a_hint() -> None:
    run = with_facts(
        trained(), lambda rank: [Gathered(call, call, "32x32", LINE) for call in (1, 2, 4, 8)]
    )

    (finding,) = result_of("DD510", run).findings

    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)
    assert "a tensor of 32x32 that requires a gradient is gathered (train.py:21)" in finding.message
    assert "no gradient reaches the ranks that made the other parts" in finding.message
    assert "autograd" in finding.fix


def test_a_gather_once_is_none_of_the_loss() -> None:
    run = with_facts(trained(), lambda rank: [Gathered(1, 1, "32x32", LINE)])

    assert result_of("DD510", run).findings == ()
