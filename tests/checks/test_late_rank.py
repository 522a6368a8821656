"""DD101 late-rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import Kind, Phase
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.modelevents import GradientTimes, ModelFacts
from ddpdoctor.tracefile import Run
from tests.builders import LINE, MS, StepTimes, result_of, simulate, with_ranks, with_samples
from tests.model_builders import model_info

ORIGINS = ["input", "forward", "backward", "optimizer", "between"]


def late_by(ms: float, phase: str, rank: int = 1):
    """Times of a job in which one rank spends more in one phase."""

    def times(r: int, _step: int) -> StepTimes:
        usual = StepTimes()
        if r != rank:
            return usual
        return replace(usual, **{phase: getattr(usual, phase) + ms})

    return times


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_it_names_the_rank_the_origin_and_the_delay(origin: str, ranks: int) -> None:
    run = simulate(late_by(40, origin), ranks, transfer_ms=(0.5, 0.5, 0.5))
    run = with_samples(run, 1, Phase[origin.upper()], 100)

    result = result_of("DD101", run)

    (finding,) = result.findings
    assert finding.culprits == (1,)
    assert finding.victims == tuple(rank for rank in range(ranks) if rank != 1)
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where[0].line == LINE[Phase[origin.upper()]].line
    delay = next(e.value for e in finding.evidence if e.what == "delay it caused per step")
    assert delay == pytest.approx(40, abs=0.6)
    assert finding.lost_s == pytest.approx(0.040 * 36, rel=0.05)


def in_backward(run: Run, ready_us: dict[int, tuple[int, ...]]) -> Run:
    """As where the recorder saw when each gradient was ready, the last layer's first."""

    def seen(trace):
        times = ready_us[trace.info.rank]
        looks = {(0, sync): GradientTimes(0, sync, (3, 2, 1, 0), times) for sync in (8, 16, 32)}
        facts = ModelFacts(models={0: model_info()}, gradient_times=looks)
        return replace(trace, model=facts)

    return with_ranks(run, seen)


@pytest.mark.parametrize(
    ("late_us", "place"),
    [
        (
            (1000, 2000, 43000, 44000),
            "after the gradient of last.weight, before that of first.bias",
        ),
        ((41000, 42000, 43000, 44000), "at its beginning, before that of last.bias"),
        ((11000, 22000, 33000, 44000), None),  # all along
    ],
)
def test_a_late_backward_falls_behind_after_a_parameter(
    late_us: tuple[int, ...], place: str | None
) -> None:
    usual = (1000, 2000, 3000, 4000)
    run = in_backward(simulate(late_by(40, "backward")), {0: usual, 1: late_us})
    (finding,) = result_of("DD101", run).findings
    assert finding.message.endswith(place or "it comes from its backward")


def test_where_no_gradient_was_looked_at_the_bucket_tells() -> None:
    """Rank 1 is late at its second bucket only: the first came when it came on rank 0."""

    def early(trace):
        detail = trace.detail.copy()
        first = (detail["kind"] == Kind.COLLECTIVE) & (detail["bucket"] == 0)
        if trace.info.rank == 1:
            detail["begin_ns"][first] -= 20 * MS
        return replace(trace, detail=detail)

    (finding,) = result_of("DD101", with_ranks(simulate(late_by(40, "backward")), early)).findings
    assert finding.message.endswith("before bucket 1 is ready")


def test_without_the_second_witness_it_is_only_likely_and_names_no_line() -> None:
    (finding,) = result_of("DD101", simulate(late_by(40, "forward"))).findings

    assert finding.confidence is Confidence.LIKELY
    assert finding.where == ()


def test_a_lateness_spread_over_phases_has_no_named_origin() -> None:
    def times(rank: int, _step: int) -> StepTimes:
        return StepTimes() if rank == 0 else StepTimes(11, 15, 20, 11, 10.5)

    (finding,) = result_of("DD101", simulate(times)).findings

    assert finding.severity is Severity.WARNING  # 50 ms of 77 would be an error with an origin
    assert finding.confidence is Confidence.POSSIBLE
    assert "no single phase explains it" in finding.message
    assert "Measure next" in finding.fix


@pytest.mark.parametrize(("steps", "severity"), [(60, Severity.INFO), (1600, Severity.WARNING)])
def test_what_is_spread_over_phases_must_last(steps: int, severity: Severity) -> None:
    """A rank was late by 2.8 ms of 16 in a healthy training of a second."""

    def times(rank: int, _step: int) -> StepTimes:
        more = 1.3 * (rank == 0)
        return StepTimes(2 + more, 6 + more, 8 + more, 2, 1)

    (finding,) = result_of("DD101", simulate(times, steps=steps)).findings

    assert "no single phase explains it" in finding.message
    assert finding.severity is severity


@pytest.mark.parametrize(
    ("explained_ms", "severity"), [(24, Severity.WARNING), (10, Severity.INFO)]
)
def test_a_lateness_that_its_phases_do_not_show_is_a_hint(
    explained_ms: float, severity: Severity
) -> None:
    """The rest of 40 ms goes by while the rank stands in a call of its own, which is no phase."""

    def in_a_call_of_its_own(trace):
        if trace.info.rank == 0:
            return trace
        detail = trace.detail
        forwards = (detail["kind"] == Kind.SPAN) & (detail["code"] == Phase.FORWARD)
        stands = detail[forwards].copy()
        stands["code"] = Phase.BLOCKED
        stands["begin_ns"] += int((5 + explained_ms) * MS)
        stands["depth"] = 1
        stands["commit"] += len(detail)
        return replace(trace, detail=np.concatenate([detail, stands]))

    run = with_ranks(simulate(late_by(40, "forward")), in_a_call_of_its_own)

    (finding,) = result_of("DD101", run).findings

    assert finding.severity is severity
    assert finding.confidence is Confidence.POSSIBLE


def test_a_rank_that_has_no_cpu_is_a_disturbed_measurement() -> None:
    def starved(trace):
        detail = trace.detail.copy()
        if trace.info.rank == 1:
            detail["nbytes"][detail["kind"] == Kind.STEP] = 30 * MS
        return replace(trace, detail=detail)

    run = with_ranks(simulate(late_by(40, "forward")), starved)

    assert result_of("DD101", run).outcome is Outcome.CLEAN
    (finding,) = result_of("DD106", run).findings
    assert finding.severity is Severity.INFO
    assert finding.culprits == (1,)
    assert "disturbed" in finding.message
    assert "quiet" in finding.fix


def test_equal_ranks_are_clean() -> None:
    assert result_of("DD101", simulate(lambda rank, step: StepTimes())).outcome is Outcome.CLEAN


def test_ranks_that_are_late_in_turn_are_clean() -> None:
    def times(rank: int, step: int) -> StepTimes:
        return StepTimes(forward=45 if step % 2 == rank else 5)

    assert result_of("DD101", simulate(times)).outcome is Outcome.CLEAN


def test_always_last_by_a_little_is_no_finding() -> None:
    assert result_of("DD101", simulate(late_by(0.2, "forward"))).outcome is Outcome.CLEAN


def test_one_long_pause_is_not_a_late_rank() -> None:
    """The mean delay is large; the typical one is not."""

    def times(rank: int, step: int) -> StepTimes:
        return StepTimes(between=2000.5 if (rank, step) == (1, 20) else 0.5)

    assert result_of("DD101", simulate(times)).outcome is Outcome.CLEAN


def test_two_late_ranks_of_four_are_not_blamed_on_one() -> None:
    def times(rank: int, _step: int) -> StepTimes:
        return StepTimes(forward=45 if rank in (1, 2) else 5)

    assert result_of("DD101", simulate(times, 4)).outcome is Outcome.CLEAN


def test_a_single_rank_is_skipped() -> None:
    result = result_of("DD101", simulate(lambda rank, step: StepTimes(), 1))

    assert result.outcome is Outcome.SKIPPED
    assert result.reason == "a single rank waits for nobody"


def test_few_steps_are_skipped() -> None:
    result = result_of("DD101", simulate(late_by(40, "forward"), steps=5))

    assert result.outcome is Outcome.SKIPPED


def test_clocks_that_cannot_be_compared_are_skipped() -> None:
    run = simulate(late_by(40, "forward"))
    other_clock = with_ranks(
        run,
        lambda trace: replace(trace, info=replace(trace.info, clock_id=f"boot{trace.info.rank}")),
    )

    assert result_of("DD101", other_clock).outcome is Outcome.SKIPPED
