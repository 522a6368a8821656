"""DD404 environment-drift."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from ddpdoctor.tracefile import Run
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


def test_a_module_that_only_one_rank_imported_is_no_other_code() -> None:
    run = run_where(2, 0, code={"train.py": "aaaa", "logging_on_rank0.py": "cccc"})

    assert result_of("DD404", run).outcome is Outcome.CLEAN


def test_equal_ranks_are_clean() -> None:
    run = simulate(lambda r, s: StepTimes(), 4, 12)

    assert result_of("DD404", run).outcome is Outcome.CLEAN
