"""DD403."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.launchfacts import LaunchFacts
from ddpdoctor.preflight.launcher import against_slurm, launch_of
from ddpdoctor.tracefile import RankTrace
from tests.builders import StepTimes, result_of, simulate, with_ranks
from tests.launch_builders import codes, launch, only_finding, process

HAND_SET = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_the_rank_with_another_world_size_is_named() -> None:
    sizes = [process(rank, world_size=3) for rank in (0, 1)] + [process(2, world_size=4)]

    code, finding = only_finding(launch(*sizes))

    assert code == "DD403"
    assert finding.message == "the ranks differ in WORLD_SIZE: 3 on ranks 0 and 1; 4 on rank 2"
    assert finding.culprits == (2,)


def test_a_rank_that_waits_for_more_than_there_are_is_one_finding() -> None:
    """Rank 2 is not missing: rank 0 alone believes in it."""
    facts = launch(process(0, world_size=3), process(1, world_size=2), world_size=3)

    code, finding = only_finding(facts)

    assert code == "DD403"
    assert finding.culprits == (0, 1)


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"RANK": "1", "WORLD_SIZE": "1"}, "RANK=1 is not below WORLD_SIZE=1"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one' is no number that it can be"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is 0"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        (
            {"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8",
             "SLURM_STEP_ID": "0"},
            "WORLD_SIZE=1, but Slurm started 8 tasks",
        ),
    ],
)  # fmt: skip
def test_variables_that_cannot_be_right(variables: dict[str, str], problem: str) -> None:
    told = launch_of(HAND_SET | variables)
    one = process(told.rank, world_size=told.world_size, problems=told.problems)

    code, finding = only_finding(LaunchFacts((one,), told.world_size))

    assert code == "DD403"
    assert problem in finding.message


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "7", "WORLD_SIZE": "8"},
        {},  # an address alone, as a shell profile sets it
        {"RANK": "0", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "2",
         "SLURM_STEP_ID": "0", "TORCHELASTIC_RUN_ID": "x"},  # a task starts torchrun
        {"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},  # in `salloc`
    ],
)  # fmt: skip
def test_variables_that_fit_have_no_problem(variables: dict[str, str]) -> None:
    assert launch_of(HAND_SET | variables).problems == ()


def test_a_task_of_slurm_may_spawn_several_ranks_but_not_be_less_than_one() -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}

    assert against_slurm(8, step, may_spawn=True) == []
    assert against_slurm(1, step, may_spawn=True) == ["WORLD_SIZE=1, but Slurm started 2 tasks"]


def test_ranks_that_agree_are_clean() -> None:
    assert codes(launch(process(0), process(1))) == []


@pytest.mark.parametrize(("started", "is_found"), [("2", False), ("8", True), ("1", False)])
def test_a_recorded_group_is_held_against_what_was_started(started: str, is_found: bool) -> None:
    """A process may spawn more ranks than the launcher started processes."""

    def told(trace: RankTrace) -> RankTrace:
        return replace(trace, info=replace(trace.info, environment={"WORLD_SIZE": started}))

    result = result_of("DD403", with_ranks(simulate(lambda rank, step: StepTimes(), 2), told))

    assert bool(result.findings) == is_found
    if is_found:
        assert "of 2 ranks, and the launcher started 8" in result.findings[0].message
