"""DD404 environment-drift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import StepTimes, result_of, simulate, with_ranks


def run_where(ranks: int, rank: int, **facts) -> Run:
    """A run in which one rank has other facts."""
    run = simulate(lambda r, s: StepTimes(), ranks, 12)
    return with_ranks(
        run,
        lambda trace: (
            replace(trace, info=replace(trace.info, **facts)) if trace.info.rank == rank else trace
        ),
    )


def test_another_torch_on_one_rank_names_it() -> None:
    run = run_where(4, 2, versions={"python": "3.11.7", "torch": "2.9.1"})

    (finding,) = result_of("DD404", run).findings

    assert finding.culprits == (2,)
    assert finding.severity is Severity.ERROR
    assert finding.message == "rank 2 differs from the others in version torch"
    assert finding.evidence[0].value == "2.13.0 on ranks 0, 1 and 3; 2.9.1 on rank 2"


def test_of_two_ranks_that_differ_none_is_the_culprit_alone() -> None:
    run = run_where(2, 1, code={"train.py": "bbbb"})

    (finding,) = result_of("DD404", run).findings

    assert finding.culprits == (0, 1)
    assert "the same copy of the code" in finding.fix


def test_all_that_one_rank_has_otherwise_is_one_finding() -> None:
    run = run_where(
        4, 3, versions={"python": "3.12.0", "torch": "2.9.1"}, environment={"NCCL_DEBUG": "INFO"}
    )

    (finding,) = result_of("DD404", run).findings

    assert [e.what for e in finding.evidence] == [
        "version python", "version torch", "variable NCCL_DEBUG",
    ]  # fmt: skip


def test_a_variable_on_one_rank_is_a_warning() -> None:
    (finding,) = result_of("DD404", run_where(3, 0, environment={"NCCL_DEBUG": "INFO"})).findings

    assert finding.severity is Severity.WARNING


def test_rank_numbers_and_interfaces_may_differ() -> None:
    by_design = {"RANK": "1", "LOCAL_RANK": "1", "GLOO_SOCKET_IFNAME": "eth1", "SLURM_PROCID": "1"}

    assert result_of("DD404", run_where(2, 1, environment=by_design)).outcome is Outcome.CLEAN


def run_with(**environments: Callable[[int], str]) -> Run:
    """A run of four ranks, two a host, in which each variable is what its rank makes of it."""

    def change(trace: RankTrace) -> RankTrace:
        rank = trace.info.rank
        environment = {name: value(rank) for name, value in environments.items()}
        return replace(
            trace, info=replace(trace.info, local_rank=rank % 2, environment=environment)
        )

    return with_ranks(simulate(lambda r, s: StepTimes(), 4, 12), change)


@pytest.mark.parametrize(
    "name",
    ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "CUDA_CACHE_PATH", "TORCH_EXTENSIONS_DIR", "OMP_X_PREFIX"],
)
def test_places_to_write_to_may_differ(name: str) -> None:
    run = run_with(**{name: lambda rank: f"/scratch/{'abcd'[rank]}"})

    assert result_of("DD404", run).outcome is Outcome.CLEAN


@pytest.mark.parametrize(
    "value",
    [
        lambda rank: f"cache-of-{rank}-of-4",
        lambda rank: f"cache-of-{rank:03d}",
        lambda rank: f"cuda:{rank % 2}",
        lambda rank: f"rank {rank}, local {rank % 2}, port 2950{0}",
        str,
    ],
)
def test_values_that_differ_by_the_ranks_own_number_are_alike(value) -> None:
    run = run_with(TORCH_WHAT=value)

    assert result_of("DD404", run).outcome is Outcome.CLEAN


@pytest.mark.parametrize(
    "value",
    [
        lambda rank: f"cache-{rank * 2}",  # not the rank's number
        lambda rank: f"{'abcd'[rank]}-{rank}",  # more than the number differs
        lambda rank: "4" if rank else "8",
        lambda rank: "9" * 5000 if rank else "1",
        lambda rank: f"level{rank}" if rank else "level",
    ],
)
def test_other_differences_are_found(value) -> None:
    run = run_with(OMP_WHAT=value)

    assert result_of("DD404", run).outcome is Outcome.FINDINGS


def test_off_and_on_is_no_rank_number() -> None:
    run = run_where(2, 1, environment={"NCCL_IB_DISABLE": "1"})
    run = with_ranks(
        run,
        lambda trace: replace(
            trace,
            info=replace(trace.info, environment={"NCCL_IB_DISABLE": str(trace.info.rank)}),
        ),
    )

    assert result_of("DD404", run).outcome is Outcome.FINDINGS


def test_a_module_that_only_one_rank_imported_is_no_other_code() -> None:
    run = run_where(2, 0, code={"train.py": "aaaa", "logging_on_rank0.py": "cccc"})

    assert result_of("DD404", run).outcome is Outcome.CLEAN


def test_equal_ranks_are_clean() -> None:
    run = simulate(lambda r, s: StepTimes(), 4, 12)

    assert result_of("DD404", run).outcome is Outcome.CLEAN
