"""DD205 extra-collectives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.analysis.replay import Link
from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from ddpdoctor.modelevents import ModelFact
from ddpdoctor.tracefile import Run
from tests.builders import result_of
from tests.link_builders import on_one_host, over_link
from tests.model_builders import model_info, with_facts

FAST = Link(0.1, 1e6, 2)


def with_model(run: Run, broadcast: str = "True") -> Run:
    arguments = {"broadcast_buffers": broadcast, "find_unused_parameters": "False"}

    def facts(_rank: int) -> list[ModelFact]:
        return [model_info(arguments=arguments)]

    return with_facts(run, facts)


def test_metrics_of_each_step_are_named_with_their_line() -> None:
    run = over_link(FAST, metrics=5, metric_ms=2.0)

    (finding,) = result_of("DD205", run).findings

    assert finding.severity is Severity.WARNING
    assert "5 × all_reduce at train.py:77" in finding.message
    assert "every N steps" in finding.fix
    cost = next(e.value for e in finding.evidence if e.what.startswith("transfer of extra"))
    assert cost == pytest.approx(10.0, rel=0.1)


def test_buffers_are_told_from_calls_of_the_script() -> None:
    run = with_model(over_link(FAST, extra_ms=20.0))

    (finding,) = result_of("DD205", run).findings

    assert "DDP's broadcast of buffers" in finding.message
    assert "broadcast_buffers=False" in finding.fix


def test_a_broadcast_without_buffers_is_the_scripts_own() -> None:
    run = with_model(over_link(FAST, extra_ms=20.0), broadcast="False")

    (finding,) = result_of("DD205", run).findings

    assert "buffers" not in finding.message


def test_metrics_every_tenth_step_are_clean() -> None:
    run = over_link(FAST, metrics=5, metric_ms=2.0, metric_every=10)

    assert result_of("DD205", run).outcome is Outcome.CLEAN


def test_a_small_call_in_a_long_step_is_clean() -> None:
    run = over_link(FAST, metrics=1, metric_ms=0.5, backward_ms=60.0)

    assert result_of("DD205", run).outcome is Outcome.CLEAN


def test_waiting_for_a_late_rank_at_them_is_not_theirs() -> None:
    """Rank 1 is late in forward, and the others meet it first at the broadcast of buffers."""
    run = over_link(FAST, extra_ms=0.5, late_ms=60.0)

    assert result_of("DD205", run).outcome is Outcome.CLEAN
    assert result_of("DD101", run).outcome is Outcome.FINDINGS


def test_on_one_host_no_step_without_them_is_promised() -> None:
    (finding,) = result_of("DD205", on_one_host(over_link(FAST, metrics=5, metric_ms=2.0))).findings

    assert "would take" not in finding.fix


def test_on_one_host_buffers_or_a_single_call_are_a_hint() -> None:
    buffers = with_model(on_one_host(over_link(FAST, extra_ms=20.0)))
    single = on_one_host(over_link(FAST, metrics=1, metric_ms=15.0))
    several = on_one_host(over_link(FAST, metrics=2, metric_ms=8.0))

    severities = [
        result_of("DD205", run).findings[0].severity for run in (buffers, single, several)
    ]

    assert severities == [Severity.INFO, Severity.INFO, Severity.WARNING]


def test_with_a_rank_missing_it_cannot_tell_waiting_from_transfer() -> None:
    run = over_link(FAST, metrics=5, metric_ms=2.0, ranks=3)

    assert result_of("DD205", replace(run, ranks=run.ranks[:2])).outcome is not Outcome.FINDINGS
