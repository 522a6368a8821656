"""DD203 no-overlap."""

from __future__ import annotations

from ddpdoctor.analysis.replay import Link
from ddpdoctor.checks import Outcome
from tests.builders import result_of
from tests.link_builders import on_one_host, over_link

LINK = Link(0.2, 200_000.0, 2)  # 8 MB take 40 ms


def test_one_bucket_for_all_gradients_is_named_with_its_cap() -> None:
    run = over_link(LINK, buckets=1, bucket_bytes=8_000_000, backward_ms=60.0)

    (finding,) = result_of("DD203", run).findings

    assert "in one bucket" in finding.message
    assert "bucket_cap_mb=1" in finding.fix
    assert "a step would take" in finding.fix
    assert result_of("DD201", run).outcome is Outcome.CLEAN


def test_buckets_that_come_all_at_the_end_are_told_and_the_cause_left_open() -> None:
    run = over_link(LINK, buckets=8, bucket_bytes=1_000_000, backward_ms=60.0, first_ready=0.95)

    (finding,) = result_of("DD203", run).findings

    assert "ready only after 9" in finding.message
    assert "Not known" in finding.fix
    assert result_of("DD201", run).outcome is Outcome.CLEAN


def test_a_bucket_stream_that_hides_is_clean() -> None:
    run = over_link(LINK, buckets=8, bucket_bytes=1_000_000, backward_ms=60.0)

    assert result_of("DD203", run).outcome is Outcome.CLEAN


def test_a_link_that_takes_far_longer_than_backward_is_bandwidth() -> None:
    run = over_link(LINK, buckets=4, bucket_bytes=20_000_000, backward_ms=10.0)

    assert result_of("DD203", run).outcome is Outcome.CLEAN
    assert result_of("DD201", run).outcome is Outcome.FINDINGS


def test_one_small_bucket_is_harmless() -> None:
    run = over_link(LINK, buckets=1, bucket_bytes=200_000, backward_ms=60.0)

    assert result_of("DD203", run).outcome is Outcome.CLEAN


def test_a_late_rank_is_not_taken_for_missing_overlap() -> None:
    run = over_link(
        Link(0.2, 2e6, 2), buckets=1, bucket_bytes=2_000_000, backward_ms=60.0, late_ms=50.0
    )

    assert result_of("DD203", run).outcome is Outcome.CLEAN


def test_on_one_host_there_is_nothing_to_hide_behind() -> None:
    run = over_link(LINK, buckets=1, bucket_bytes=8_000_000, backward_ms=60.0)

    result = result_of("DD203", on_one_host(run))

    assert result.outcome is Outcome.SKIPPED
    assert "CPU" in (result.reason or "")
