"""DD304 uneven-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.deliveries import LoaderEpoch
from ddpdoctor.events import Kind
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import StepTimes, one_pass, own_loader, result_of, simulate, with_ranks

Passes = Callable[[int], tuple[LoaderEpoch, ...]]
OWN_SHARDS = {"sampler": "SequentialSampler", "sampler_replicas": None, "sampler_rank": None}


def run_with(
    lengths: Sequence[int | None],
    passes: Passes = lambda rank: (),
    *,
    steps: int = 3,
    is_closed: bool = False,
    **facts,
) -> Run:
    """A run of so many steps whose loaders say that they have these lengths."""

    def add(trace: RankTrace) -> RankTrace:
        rank = trace.info.rank
        own = own_loader(trace, length=lengths[rank], **OWN_SHARDS | facts)
        return replace(trace, loaders={0: own}, epochs=passes(rank), closed=is_closed)

    return with_ranks(simulate(lambda r, s: StepTimes(), len(lengths), steps), add)


def without_last_reduction(run: Run, rank: int) -> Run:
    """As if this rank never came to the last reductions, in which the others stand."""

    def cut(trace: RankTrace) -> RankTrace:
        ended = trace.detail["sync"] == trace.detail["sync"].max()
        detail = trace.detail[~ended]
        last = (detail["kind"] == Kind.COLLECTIVE) & (detail["sync"] == detail["sync"].max())
        if trace.info.rank == rank:
            return replace(trace, detail=detail[~last])
        detail = detail.copy()
        detail["end_ns"] = np.where(last, 0, detail["end_ns"])
        return replace(trace, detail=detail)

    return with_ranks(run, cut)


def closed(run: Run) -> Run:
    return with_ranks(run, lambda trace: replace(trace, closed=True))


def test_lengths_alone_tell_it_before_the_job_hangs() -> None:
    (finding,) = result_of("DD304", run_with([40, 40, 50, 40])).findings

    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert (finding.culprits, finding.victims) == ((2,), (0, 1, 3))  # it has too many
    assert "the job will hang in step 41" in finding.message


def test_without_a_majority_the_shortest_are_named() -> None:
    (finding,) = result_of("DD304", run_with([40, 50])).findings

    assert (finding.culprits, finding.victims) == ((0,), (1,))


def test_facts_of_the_start_are_enough() -> None:
    run = with_ranks(run_with([5, 6]), lambda trace: replace(trace, detail=trace.detail[:0]))

    (finding,) = result_of("DD304", run).findings

    assert "hang in step 6" in finding.message


def test_accumulated_batches_are_counted_in_steps() -> None:
    """Four batches a step: the 41st batch belongs to step 11."""
    started = one_pass(9, ended=False, last_sync=2)

    (finding,) = result_of("DD304", run_with([40, 50], lambda rank: (started,))).findings

    assert "hang in step 11" in finding.message


def test_equal_lengths_are_clean() -> None:
    assert result_of("DD304", run_with([40, 40])).outcome is Outcome.CLEAN


def test_within_join_ranks_may_have_fewer() -> None:
    assert result_of("DD304", run_with([40, 50], joined=True)).outcome is Outcome.CLEAN


def test_unknown_lengths_without_a_pass_are_skipped() -> None:
    assert result_of("DD304", run_with([None, None])).outcome is Outcome.SKIPPED


def test_a_rank_whose_loader_ended_and_that_the_others_wait_for() -> None:
    def passes(rank: int) -> tuple[LoaderEpoch, ...]:
        return (one_pass(2) if rank == 1 else one_pass(2, ended=False, last_sync=1),)

    run = without_last_reduction(run_with([None, None], passes, iterable=True), rank=1)

    (finding,) = result_of("DD304", run).findings

    assert finding.confidence is Confidence.CERTAIN
    assert finding.culprits == (1,)
    assert "in step 3 rank 0 waits for rank 1, which has none left" in finding.message
    assert result_of("DD913", run).outcome is Outcome.CLEAN  # one cause, one finding


def test_a_job_that_stopped_all_ranks_at_the_shortest_is_clean() -> None:
    run = run_with([3, 4], lambda rank: (one_pass(3 + rank, last_sync=3),), is_closed=True)

    assert result_of("DD304", run).outcome is Outcome.CLEAN


def test_a_job_that_is_past_that_step_is_clean() -> None:
    def passes(rank: int) -> tuple[LoaderEpoch, ...]:
        return (one_pass(3 + rank, last_sync=3), one_pass(4, epoch=1, first_sync=3, ended=False))

    assert result_of("DD304", run_with([3, 4], passes, steps=9)).outcome is Outcome.CLEAN


def test_ranks_whose_epochs_drift_apart_are_a_warning() -> None:
    def passes(rank: int) -> tuple[LoaderEpoch, ...]:
        following = one_pass(4, epoch=1, first_sync=3 + rank, ended=False)
        return (one_pass(3 + rank), following)

    run = run_with([3, 4], passes, steps=9)
    (running,) = result_of("DD304", run).findings
    (crashed,) = result_of("DD304", without_last_reduction(closed(run), rank=0)).findings

    assert running.severity is Severity.WARNING
    assert "steps of different epochs are reduced together" in running.message
    assert crashed.severity is Severity.ERROR
    assert "in the end rank 1 waits for rank 0" in crashed.message
    assert result_of("DD304", closed(run)).outcome is Outcome.CLEAN  # as many steps in all


def test_a_length_that_lies_is_corrected_by_counting() -> None:
    run = run_with([40, 50], lambda rank: (one_pass(45),))

    assert result_of("DD304", run).outcome is Outcome.CLEAN


def test_lengths_that_change_from_epoch_to_epoch() -> None:
    """Batches of as many tokens, say: the first epoch was even and the second is not."""

    def passes(rank: int) -> tuple[LoaderEpoch, ...]:
        return (one_pass(3), one_pass(3 + rank, epoch=1, first_sync=3))

    (finding,) = result_of("DD304", run_with([None, None], passes, steps=3)).findings

    assert "in epoch 1" in finding.message


def resumed(rank: int) -> tuple[LoaderEpoch, ...]:
    """Broken off after as many batches on all; rank 0 then goes on, and the others begin anew."""
    broken_off = one_pass(2, ended=False, last_sync=2)
    if rank == 0:
        return (broken_off, one_pass(4, epoch=1, first_sync=2, last_sync=6))
    return (broken_off, one_pass(4, epoch=1, first_sync=2, ended=False, last_sync=6))


def test_a_later_epoch_in_which_the_job_stopped() -> None:
    """Where one rank alone found the state from which to resume, say."""
    run = run_with([6, 6, 6], resumed, steps=7)

    (finding,) = result_of("DD304", without_last_reduction(run, rank=0)).findings

    assert finding.confidence is Confidence.CERTAIN
    assert (finding.culprits, finding.victims) == ((0,), (1, 2))
    assert "rank 0 gets 4 batches in epoch 1 and ranks 1 and 2 up to 5 or more" in finding.message
    assert "in step 7 the others wait for rank 0" in finding.message


def test_a_later_epoch_that_is_still_under_way_is_clean() -> None:
    """Rank 0 has drawn its last batch, the others are about to."""
    assert result_of("DD304", run_with([6, 6, 6], resumed, steps=6)).outcome is Outcome.CLEAN


@pytest.mark.parametrize("code", ["DD303", "DD307"])
def test_a_cause_that_is_another_finding(code: str) -> None:
    """Wrong replicas, or a dataset of another length, on rank 1."""

    def change(trace: RankTrace) -> RankTrace:
        own = own_loader(trace, length=40)
        if trace.info.rank == 1:
            wrong = {"sampler_replicas": 3} if code == "DD303" else {"dataset_length": 900}
            own = own_loader(trace, length=36, **wrong)
        return replace(trace, loaders={0: own})

    run = with_ranks(run_with([40, 36]), change)

    assert result_of("DD304", run).outcome is Outcome.CLEAN
    (finding,) = result_of(code, run).findings
    assert [e.value for e in finding.evidence if "batches an epoch" in e.what] == [40, 36]
