"""DD105 gc-pauses."""

from __future__ import annotations

import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from tests.builders import result_of, simulate
from tests.waiting_builders import slower, usual, with_collections


def collecting(lengths: dict[tuple[int, int], float], ranks: int = 2, steps: int = 60):
    paused = slower("forward", lambda r, s: lengths.get((r, s), 0.0))
    return with_collections(simulate(paused, ranks, steps), lengths)


def test_pauses_of_one_rank_are_its_own() -> None:
    run = collecting({(1, step): 50.0 for step in range(10, 60, 5)})
    (finding,) = result_of("DD105", run).findings
    assert finding.severity is Severity.ERROR
    assert (finding.culprits, finding.victims) == ((1,), (0,))
    assert finding.lost_s == pytest.approx(10 * 0.050, rel=0.15)
    assert "gc.freeze()" in finding.fix


def test_pauses_out_of_step_blame_no_rank_and_each_one_counts() -> None:
    run = collecting({(step % 3, step): 50.0 for step in range(10, 60, 5)}, ranks=3)
    (finding,) = result_of("DD105", run).findings
    assert finding.culprits == ()
    assert finding.lost_s == pytest.approx(10 * 0.050, rel=0.15)
    assert result_of("DD102", run).outcome is Outcome.CLEAN


def test_pauses_on_all_ranks_in_the_same_step_cost_once() -> None:
    run = collecting({(rank, step): 50.0 for rank in range(3) for step in range(10, 60, 5)}, 3)
    (finding,) = result_of("DD105", run).findings
    assert finding.lost_s == pytest.approx(10 * 0.050, rel=0.15)


def test_pauses_that_become_longer_are_said() -> None:
    run = collecting({(1, step): 2.0 * step for step in range(10, 60, 5)})
    (finding,) = result_of("DD105", run).findings
    assert "become longer" in finding.message
    assert "which objects are kept" in finding.fix


@pytest.mark.parametrize(
    "lengths",
    [
        {(1, 20): 60.0, (1, 40): 60.0},  # two, as after the imports
        {(1, step): 1.2 for step in range(10, 60, 5)},  # short
        {},
    ],
)
def test_what_costs_little_is_clean(lengths: dict[tuple[int, int], float]) -> None:
    assert result_of("DD105", collecting(lengths)).outcome is Outcome.CLEAN


def test_a_victim_that_collects_while_it_waits_loses_nothing() -> None:
    """Rank 0 collects in steps in which rank 1 is later than that anyhow."""
    lengths = {(0, step): 20.0 for step in range(10, 60, 2)}
    paused = slower("forward", lambda r, s: lengths.get((r, s), 0.0) + 40.0 * (r == 1))
    run = with_collections(simulate(paused, 2, 60), lengths)
    assert result_of("DD105", run).outcome is Outcome.CLEAN
    assert result_of("DD101", run).outcome is Outcome.FINDINGS


def test_a_record_without_collections_is_skipped() -> None:
    assert result_of("DD105", simulate(usual)).outcome is Outcome.SKIPPED
