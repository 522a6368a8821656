"""DD206 slow-link."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.analysis.replay import Link
from ddpdoctor.baseline import NetworkBaseline, PairRate, slow_links
from ddpdoctor.checks import CheckResult, Outcome, launch_checks, run_check
from ddpdoctor.findings import Severity
from ddpdoctor.launchfacts import LaunchFacts
from ddpdoctor.tracefile import Run
from tests.builders import result_of
from tests.link_builders import baseline, over_link, pairs

SLOW = Link(0.2, 20_000.0, 2)
HOST_2 = pairs({(0, 1): 1.0, (0, 2): 0.1, (1, 2): 0.11})
PAIR_0_3 = pairs({(0, 1): 1.0, (0, 2): 1.1, (0, 3): 0.2, (1, 2): 0.9, (1, 3): 1.0, (2, 3): 1.0})
ALIKE = pairs({(0, 1): 1.0, (0, 2): 0.8, (1, 2): 0.9})


def measured(found: tuple[PairRate, ...], ranks: int = 3) -> NetworkBaseline:
    return baseline(busbw=0.02, pairs=found, ranks=ranks)


def run_with(network: NetworkBaseline, link: Link = SLOW, ranks: int = 3) -> Run:
    return replace(over_link(link, ranks=ranks), network=network)


def of_launch(network: NetworkBaseline | None) -> CheckResult:
    (check,) = [check for check in launch_checks() if check.code == "DD206"]
    return run_check(check, LaunchFacts((), 3, network=network))


def test_a_host_whose_links_are_all_slow_is_named() -> None:
    (finding,) = result_of("DD206", run_with(measured(HOST_2))).findings

    assert finding.severity is Severity.WARNING
    assert finding.culprits == (2,)
    assert finding.hosts == ("node2",)
    assert finding.victims == (0, 1)
    assert finding.lost_s is not None


def test_a_pair_is_named_where_both_have_better_links() -> None:
    (finding,) = result_of("DD206", run_with(measured(PAIR_0_3, 4), ranks=4)).findings

    assert finding.culprits == (0, 3)
    assert "between node0 and node3" in finding.message


def test_with_a_slow_link_bandwidth_is_not_a_second_finding() -> None:
    assert result_of("DD201", run_with(measured(HOST_2))).outcome is Outcome.CLEAN
    assert result_of("DD201", run_with(measured(ALIKE))).outcome is Outcome.FINDINGS


def test_a_slow_link_that_costs_nothing_is_a_hint() -> None:
    (finding,) = result_of("DD206", run_with(measured(HOST_2), Link(0.1, 1e7, 2))).findings

    assert finding.severity is Severity.INFO
    assert finding.lost_s is None


def test_links_that_are_alike_are_clean() -> None:
    assert result_of("DD206", run_with(measured(ALIKE))).outcome is Outcome.CLEAN


def test_two_hosts_have_nothing_to_compare_with() -> None:
    network = baseline(pairs=pairs({(0, 1): 0.01}))

    assert result_of("DD206", run_with(network, ranks=2)).outcome is Outcome.SKIPPED


def test_not_measured_is_not_guessed() -> None:
    result = result_of("DD206", over_link(SLOW))

    assert result.outcome is Outcome.SKIPPED
    assert "--network" in (result.reason or "")


def test_before_training_it_is_a_warning_without_a_cost() -> None:
    (finding,) = of_launch(measured(HOST_2)).findings

    assert finding.severity is Severity.WARNING
    assert finding.lost_s is None
    assert of_launch(measured(ALIKE)).outcome is Outcome.CLEAN
    assert of_launch(None).outcome is Outcome.SKIPPED


@given(st.integers(3, 9), st.data())
def test_one_slow_host_among_equal_ones_is_found_whichever_it_is(
    hosts: int, data: st.DataObject
) -> None:
    slow = data.draw(st.integers(0, hosts - 1))
    every = {(a, b): 1.0 for a in range(hosts) for b in range(a + 1, hosts)}
    rates = {pair: 0.1 if slow in pair else rate for pair, rate in every.items()}

    (found,) = slow_links(measured(pairs(rates), hosts))

    assert found.ranks == (slow,)
