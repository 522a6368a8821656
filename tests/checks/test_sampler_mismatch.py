"""DD303 sampler-mismatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import GroupInfo
from ddpdoctor.findings import Confidence, Severity
from ddpdoctor.tracefile import Run
from tests.builders import (
    StepTimes,
    drawn,
    one_pass,
    own_loader,
    result_of,
    simulate,
    with_ranks,
)


def run_with(settings: Sequence[dict[str, Any]], groups: Sequence[Sequence[int]] = ()) -> Run:
    """A run in which the sampler of each rank has these settings, else the right ones."""

    def add(trace):
        own = own_loader(trace, **{"shuffle": True, "seed": 0} | settings[trace.info.rank])
        members = tuple(
            GroupInfo("dp", tuple(ranks)) for ranks in groups if trace.info.rank in ranks
        )
        return replace(trace, loaders={0: own}, ddp_groups=members)

    run = simulate(lambda rank, step: StepTimes(), len(settings), 12)
    return with_ranks(run, add)


def test_samplers_of_torch_with_their_defaults_are_clean() -> None:
    assert result_of("DD303", run_with([{}] * 4)).outcome is Outcome.CLEAN


def test_without_a_sampler_that_knows_its_rank_it_is_skipped() -> None:
    run = run_with([{"sampler_replicas": None, "sampler_rank": None}] * 2)

    assert result_of("DD303", run).outcome is Outcome.SKIPPED


def test_all_ranks_draw_the_part_of_rank_0() -> None:
    (finding,) = result_of("DD303", run_with([{"sampler_rank": 0}] * 3)).findings

    assert finding.culprits == (1, 2)
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "draws the part of another rank (rank=0)" in finding.message


@pytest.mark.parametrize("replicas", [1, 3, 8])
def test_replicas_of_another_world_size(replicas: int) -> None:
    (finding,) = result_of("DD303", run_with([{"sampler_replicas": replicas}] * 2)).findings

    assert finding.culprits == (0, 1)
    assert f"for {replicas} replicas, and 2 ranks train together" in finding.message


def test_one_rank_without_a_distributed_sampler() -> None:
    alone = {"sampler_replicas": None, "sampler_rank": None, "sampler": "RandomSampler"}

    (finding,) = result_of("DD303", run_with([{}, {}, alone])).findings

    assert finding.culprits == (2,)
    assert "reads the whole dataset (RandomSampler)" in finding.message


def test_another_seed_names_the_rank_that_has_it() -> None:
    (finding,) = result_of("DD303", run_with([{}, {}, {"seed": 7}, {}])).findings

    assert finding.culprits == (2,)
    assert "has another seed 7" in finding.message


def test_seeds_do_not_matter_to_samplers_that_do_not_shuffle() -> None:
    run = run_with([{"shuffle": False, "seed": rank} for rank in range(2)])

    assert result_of("DD303", run).outcome is Outcome.CLEAN


def test_a_rank_that_does_not_shuffle() -> None:
    (finding,) = result_of("DD303", run_with([{}, {"shuffle": False}, {}])).findings

    assert finding.culprits == (1,)


def test_a_rank_that_was_not_told_the_epoch() -> None:
    def add(trace):
        told = [0, 1] if trace.info.rank != 1 else [0, 0]
        passes = tuple(one_pass(5, epoch=e, sampler_epoch=told[e]) for e in range(2))
        return replace(trace, epochs=passes)

    (finding,) = result_of("DD303", with_ranks(run_with([{}] * 3), add)).findings

    assert finding.culprits == (1,)
    assert "another epoch 0" in finding.message


def test_ranks_that_split_a_model_share_a_part() -> None:
    """Ranks 0 and 1 hold a model together, as 2 and 3 do."""
    run = run_with(
        [{"sampler_replicas": 2, "sampler_rank": rank // 2} for rank in range(4)],
        groups=[(0, 2), (1, 3)],
    )

    assert result_of("DD303", run).outcome is Outcome.CLEAN


@pytest.mark.parametrize("own", [True, False])
def test_nodes_that_split_data_of_their_own_are_no_finding(own: bool) -> None:
    """Local ranks and local replicas, on two nodes: fine if each node holds other data."""
    settings = [{"sampler_replicas": 2, "sampler_rank": rank % 2} for rank in range(4)]

    def add(trace):
        node, local = divmod(trace.info.rank, 2)
        indices = range(local, 100, 2)
        contents = [1000 * node * own + index for index in range(100)]
        seen = drawn(indices, lambda index: (contents[index],))
        return replace(trace, drawn=(seen,))

    result = result_of("DD303", with_ranks(run_with(settings), add))

    assert result.outcome is (Outcome.CLEAN if own else Outcome.FINDINGS)


def test_a_sampler_of_ones_own_is_judged_as_likely() -> None:
    run = run_with([{"sampler": "MySampler", "sampler_rank": 0}] * 2)

    assert result_of("DD303", run).findings[0].confidence is Confidence.LIKELY
