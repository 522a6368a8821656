"""DD202 latency-bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.analysis.replay import Link
from ddpdoctor.checks import Outcome
from ddpdoctor.findings import Severity
from tests.builders import StepTimes, result_of, simulate
from tests.link_builders import baseline, on_one_host, over_link

SLOW_TO_ANSWER = Link(2.0, 1_000_000.0, 2)


def many_small(link: Link = SLOW_TO_ANSWER, **changes: float):
    return over_link(link, buckets=40, bucket_bytes=9_000, backward_ms=10.0, **changes)


def test_many_small_buckets_are_named_with_what_each_takes() -> None:
    (finding,) = result_of("DD202", many_small()).findings

    assert finding.severity is Severity.ERROR
    assert "40 messages" in finding.message
    alpha = next(e.value for e in finding.evidence if "alpha" in e.what)
    assert alpha == pytest.approx(2.0, rel=0.05)
    assert "bucket_cap_mb" in finding.fix
    assert "a step would take" in finding.fix
    assert finding.lost_s is not None
    assert result_of("DD201", many_small()).outcome is Outcome.CLEAN
    assert result_of("DD205", many_small()).outcome is Outcome.CLEAN


def test_its_gain_is_that_of_one_message() -> None:
    (finding,) = result_of("DD202", many_small()).findings

    saved = next(e.value for e in finding.evidence if e.what.startswith("saved a step"))
    assert saved == pytest.approx(40.0 / 2 * 2.0 - 2.0, rel=0.3)


def test_on_one_host_it_is_said_without_a_number() -> None:
    (finding,) = result_of("DD202", on_one_host(many_small())).findings

    assert "not known" in finding.fix
    assert "bucket_cap_mb=25" in finding.fix


def test_many_small_buckets_that_hide_behind_backward_are_harmless() -> None:
    hidden = over_link(Link(0.2, 1e6, 2), buckets=40, bucket_bytes=9_000, backward_ms=60.0)

    assert result_of("DD202", hidden).outcome is Outcome.CLEAN


def test_few_large_buckets_on_a_slow_link_are_bandwidth() -> None:
    run = over_link(Link(0.3, 50_000.0, 2), buckets=4, bucket_bytes=1_000_000)

    assert result_of("DD202", run).outcome is Outcome.CLEAN
    assert result_of("DD201", run).outcome is Outcome.FINDINGS


def test_many_metrics_are_not_buckets() -> None:
    run = over_link(Link(0.3, 1e6, 2), metrics=20, metric_ms=1.0)

    assert result_of("DD202", run).outcome is Outcome.CLEAN
    assert result_of("DD205", run).outcome is Outcome.FINDINGS


def test_a_late_rank_at_small_buckets_is_not_latency() -> None:
    run = many_small(Link(0.02, 1e6, 2), late_ms=60.0)

    assert result_of("DD202", run).outcome is Outcome.CLEAN


def test_alpha_from_before_the_run_serves_where_the_run_shows_none() -> None:
    """Buckets of one size, all of them larger than a small message."""
    run = simulate(lambda rank, step: StepTimes(), transfer_ms=(40, 40))
    assert result_of("DD202", run).outcome is Outcome.SKIPPED

    known = replace(run, network=baseline(alpha_ms=0.2))

    assert result_of("DD202", known).outcome is Outcome.CLEAN
    assert result_of("DD201", known).outcome is Outcome.FINDINGS
