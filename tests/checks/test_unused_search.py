"""DD207 unused-search."""

from __future__ import annotations

from collections.abc import Callable

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from ddpdoctor.modelevents import UnusedSearch
from ddpdoctor.tracefile import Run
from tests.builders import result_of
from tests.model_builders import model_info, trained, with_facts

SEARCHING = {"find_unused_parameters": "True", "broadcast_buffers": "True"}


def searched(
    ms: float, unused: Callable[[int, int], tuple[int, ...]] = lambda rank, sync: (), **more: str
) -> Run:
    """A run of steps of some 18 ms in which each forward spends so long in the search."""
    run = trained(info=lambda rank: model_info(arguments=SEARCHING | more), unused=unused)
    return with_facts(run, lambda rank: [UnusedSearch(0, 10, int(10 * ms * 1e6))])


def test_a_search_that_costs_and_finds_nothing_is_named_with_its_cost() -> None:
    (finding,) = result_of("DD207", searched(2.0)).findings

    assert finding.severity is Severity.WARNING
    assert "find_unused_parameters" in finding.fix
    assert "2.00 ms" in finding.message


def test_the_flag_alone_is_a_hint() -> None:
    (finding,) = result_of("DD207", searched(0.06)).findings

    assert finding.severity is Severity.INFO
    assert finding.lost_s is None


def test_a_search_that_finds_something_on_one_rank_once_is_needed() -> None:
    run = searched(2.0, unused=lambda rank, sync: (3,) if rank == 1 and sync == 8 else ())

    assert result_of("DD207", run).outcome is Outcome.CLEAN


def test_a_static_graph_does_not_search() -> None:
    assert result_of("DD207", searched(2.0, static_graph="True")).outcome is Outcome.CLEAN


def test_without_the_flag_it_is_clean() -> None:
    assert result_of("DD207", trained()).outcome is Outcome.CLEAN


def test_without_looks_it_cannot_tell() -> None:
    run = trained(
        info=lambda rank: model_info(arguments=SEARCHING), looked_at=lambda rank, sync: ()
    )

    assert result_of("DD207", run).outcome is Outcome.SKIPPED
