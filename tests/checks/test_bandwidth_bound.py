"""DD201 bandwidth-bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpdoctor.checks import Outcome
from ddpdoctor.events import Kind
from ddpdoctor.findings import Severity
from ddpdoctor.tracefile import Run
from tests.builders import MS, StepTimes, result_of, simulate, with_ranks


def with_small_messages(run: Run, ms: float) -> Run:
    """The bucket rebuild's small broadcast in each rank's record, which takes `ms`."""

    def add(trace):
        small = trace.detail[trace.detail["kind"] == Kind.COLLECTIVE][:1].copy()
        small["commit"] = len(trace.detail) + 1
        small["seq"] = 1_000_000
        small["nbytes"] = 64
        small["flags"] = 0
        small["bucket"] = -1
        small["end_ns"] = small["begin_ns"] + int(ms * MS)
        return replace(trace, detail=np.concatenate([trace.detail, small]))

    return with_ranks(run, add)


def equal_ranks(transfer_ms: tuple[float, ...], bucket_bytes: int = 4_000_000) -> Run:
    return simulate(
        lambda rank, step: StepTimes(), transfer_ms=transfer_ms, bucket_bytes=bucket_bytes
    )


def test_a_slow_link_is_named_with_its_rate() -> None:
    run = with_small_messages(equal_ranks((40, 40)), 0.3)

    (finding,) = result_of("DD201", run).findings

    assert finding.severity is Severity.ERROR
    busbw = next(e.value for e in finding.evidence if e.what == "bus bandwidth reached")
    assert busbw == pytest.approx(8e6 / 0.080 / 1e9, rel=0.05)
    assert "fp16_compress_hook" in finding.fix


def test_gloo_on_one_host_has_no_link_to_blame() -> None:
    run = with_small_messages(equal_ranks((40, 40)), 0.3)
    one_host = with_ranks(
        run, lambda trace: replace(trace, info=replace(trace.info, network_id="boot/net:[1]"))
    )

    (finding,) = result_of("DD201", one_host).findings

    assert finding.severity is Severity.INFO
    assert "compute threads" in finding.fix


def test_a_fast_link_is_clean() -> None:
    assert (
        result_of("DD201", with_small_messages(equal_ranks((1, 1)), 0.1)).outcome is Outcome.CLEAN
    )


def test_many_small_messages_are_latency_and_not_bandwidth() -> None:
    run = with_small_messages(equal_ranks((4,) * 10, bucket_bytes=20_000), 4.0)

    assert result_of("DD201", run).outcome is Outcome.CLEAN


def test_waiting_for_a_late_rank_is_not_transfer() -> None:
    run = simulate(lambda rank, step: StepTimes(forward=85 if rank else 5), transfer_ms=(1, 1))

    assert result_of("DD201", with_small_messages(run, 0.1)).outcome is Outcome.CLEAN


def test_without_a_small_message_it_cannot_tell() -> None:
    result = result_of("DD201", equal_ranks((40, 40)))

    assert result.outcome is Outcome.SKIPPED
    assert "latency from bandwidth" in (result.reason or "")


def test_with_a_rank_missing_it_cannot_tell() -> None:
    run = with_small_messages(equal_ranks((40, 40)), 0.3)

    assert result_of("DD201", replace(run, ranks=run.ranks[:1])).outcome is Outcome.SKIPPED
