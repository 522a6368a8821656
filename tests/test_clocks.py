"""Ranks that do not share a clock are brought onto rank 0's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.analysis import analyze
from ddpdoctor.clocks import common_clock
from ddpdoctor.events import ClockOffset
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import StepTimes, simulate, with_ranks

SHIFT_NS = 5_000 * 10**9


def shifted(run: Run, ranks: tuple[int, ...], *, measured: tuple[int, ...] = ()) -> Run:
    """As if these ranks ran on another host; those measured know their offset to rank 0."""

    def move(trace: RankTrace) -> RankTrace:
        if trace.info.rank not in ranks:
            return trace
        detail = trace.detail.copy()
        for name in ("begin_ns", "issued_ns", "end_ns"):
            detail[name][detail[name] > 0] += SHIFT_NS
        offset = ClockOffset(-SHIFT_NS, 20_000, SHIFT_NS)
        return replace(
            trace,
            detail=detail,
            info=replace(trace.info, clock_id="another/time:[1]"),
            clock=offset if trace.info.rank in measured else None,
        )

    return with_ranks(run, move)


def late_run(ranks: int = 2) -> Run:
    return simulate(lambda rank, step: StepTimes(forward=45 if rank == 1 else 5), ranks)


def test_a_measured_offset_restores_every_wait() -> None:
    moved = analyze(shifted(late_run(), (1,), measured=(1,)))
    plain = analyze(late_run())

    assert [r.times for r in moved.ranks] == [r.times for r in plain.ranks]
    assert moved.tables.clock.error_ns == 20_000


def test_one_rank_of_a_host_measures_for_all() -> None:
    run = shifted(late_run(4), (2, 3), measured=(3,))

    clock = common_clock(run.ranks)

    assert clock.comparable
    assert clock.offsets_ns == {0: 0, 1: 0, 2: -SHIFT_NS, 3: -SHIFT_NS}


def test_without_a_measurement_waits_are_not_told_from_transfer() -> None:
    times = analyze(shifted(late_run(), (1,))).ranks[0].times

    assert times.wait_ms is None
    assert times.blocked_ms == pytest.approx(40.5)


def test_without_rank_0_ranks_of_one_host_still_compare() -> None:
    run = shifted(late_run(4), (2, 3))
    without = replace(run, ranks=run.ranks[2:])

    clock = common_clock(without.ranks)

    assert clock.comparable
    assert clock.offsets_ns == {2: 0, 3: 0}
