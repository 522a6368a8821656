"""Ranks that do not share a clock are brought onto rank 0's, also where the clocks drift apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.analysis import analyze
from ddpdoctor.clocks import DRIFT, WANDER, RankClock, common_clock
from ddpdoctor.events import ClockOffset
from ddpdoctor.factsfile import MOST_OF_A_KIND, read_facts
from ddpdoctor.report import run_report
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import START_NS, StepTimes, simulate, with_ranks

SECOND_NS = 10**9
SHIFT_NS = 5_000 * SECOND_NS
ERROR_NS = 20_000


def shifted(
    run: Run, ranks: tuple[int, ...], *, measured: tuple[int, ...] = (), drift: float = 0.0
) -> Run:
    """As if these ranks ran on another host, whose clock is ahead and, by `drift`, faster.

    Those measured know their offset to rank 0 before and after the run.
    """
    there = lambda times: times + SHIFT_NS + np.rint((times - START_NS) * drift).astype(np.int64)
    moments = np.array([START_NS, START_NS + 100 * SECOND_NS])
    clocks = tuple(
        ClockOffset(int(here - at), ERROR_NS, int(at))
        for here, at in zip(moments, there(moments), strict=True)
    )

    def move(trace: RankTrace) -> RankTrace:
        if trace.info.rank not in ranks:
            return trace
        detail = trace.detail.copy()
        for name in ("begin_ns", "issued_ns", "end_ns"):
            known = detail[name] > 0
            detail[name][known] = there(detail[name][known])
        return replace(
            trace,
            detail=detail,
            info=replace(trace.info, clock_id="another/time:[1]", began_ns=START_NS + SHIFT_NS),
            clocks=clocks if trace.info.rank in measured else (),
        )

    return with_ranks(run, move)


def late_run(ranks: int = 2) -> Run:
    return simulate(lambda rank, step: StepTimes(forward=45 if rank == 1 else 5), ranks)


def test_a_measured_offset_restores_every_wait() -> None:
    moved = analyze(shifted(late_run(), (1,), measured=(1,)))
    plain = analyze(late_run())

    assert [r.times for r in moved.ranks] == [r.times for r in plain.ranks]


def test_drift_between_two_measurements_is_corrected() -> None:
    """Uncorrected, 1 ms in the second would be 2.6 ms at the end of these 2.6 s."""
    moved = analyze(shifted(late_run(), (1,), measured=(1,), drift=1e-3)).tables
    plain = analyze(late_run()).tables

    for column in ("begin_ns", "end_ns"):
        apart = (moved.steps[column] - plain.steps[column]).abs()
        assert apart.max() <= 10_000  # of drift on the drift itself
    assert (moved.collectives["last_rank"] == plain.collectives["last_rank"]).all()


def test_one_rank_of_a_host_measures_for_all() -> None:
    run = shifted(late_run(4), (2, 3), measured=(3,))

    clock = common_clock(run.ranks)

    assert clock.comparable
    times = np.array([START_NS + SHIFT_NS])
    assert [clock.ranks[rank].to_common(times)[0] - times[0] for rank in (2, 3)] == [-SHIFT_NS] * 2
    assert clock.ranks[0].to_common(times) == times


def test_without_a_measurement_waits_are_not_told_from_transfer() -> None:
    times = analyze(shifted(late_run(), (1,))).ranks[0].times

    assert times.wait_ms is None
    assert times.blocked_ms == pytest.approx(40.5)


def test_a_clock_that_jumped_between_two_measurements_is_not_known() -> None:
    """As in a virtual machine that was suspended meanwhile."""
    run = shifted(late_run(), (1,), measured=(1,), drift=0.1)

    assert not common_clock(run.ranks).comparable


def test_without_rank_0_ranks_of_one_host_still_compare() -> None:
    run = shifted(late_run(4), (2, 3))
    without = replace(run, ranks=run.ranks[2:])

    clock = common_clock(without.ranks)

    assert clock.comparable
    assert clock.error_ns == 0


def test_the_report_says_how_well_the_clocks_are_known_where_it_matters() -> None:
    exact = shifted(late_run(), (1,), measured=(1,))
    vague = with_ranks(
        exact,
        lambda trace: replace(
            trace, clocks=tuple(replace(each, error_ns=5_000_000) for each in trace.clocks)
        ),
    )

    notes = [run_report(analyze(run), []).notes for run in (exact, vague)]

    assert notes[0] == ()
    assert "known to within 5.0 ms" in notes[1][0]


def test_no_more_measurements_are_read_than_a_long_run_makes(tmp_path) -> None:
    path = tmp_path / "rank00000.facts.jsonl"
    line = '{"fact": "clock", "data": {"offset_ns": 1, "error_ns": 1, "at_ns": 1}}\n'
    path.write_text(line * (MOST_OF_A_KIND + 5))

    assert len(read_facts(path).clocks) == MOST_OF_A_KIND


# --- properties of one rank's clock


@st.composite
def measurements(draw: st.DrawFn) -> list[ClockOffset]:
    """Of a clock that drifts by less than DRIFT, seconds to hours apart, in any order."""
    offset = draw(st.integers(-(10**18), 10**18))
    at = START_NS
    made = []
    for _ in range(draw(st.integers(1, 8))):
        made.append(ClockOffset(offset, draw(st.integers(0, 5_000_000)), at))
        apart = draw(st.integers(1, 10_000)) * SECOND_NS
        at += apart
        offset += round(apart * draw(st.floats(-DRIFT, DRIFT)))
    return draw(st.permutations(made))


def clock_of(measured: list[ClockOffset]) -> RankClock:
    """Rank 1's clock, as read from a run in which it has measured this."""
    run = late_run_of_two_hosts()
    rank_0, rank_1 = run.ranks
    return common_clock([rank_0, replace(rank_1, clocks=tuple(measured))]).ranks[1]


def late_run_of_two_hosts(made: list[Run] = []) -> Run:  # noqa: B006  made once
    if not made:
        run = simulate(lambda rank, step: StepTimes(), 2, 2)
        made.append(
            with_ranks(
                run,
                lambda trace: replace(
                    trace, info=replace(trace.info, clock_id=f"host {trace.info.rank}")
                ),
            )
        )
    return made[0]


@given(measurements())
def test_at_its_measurements_a_clock_is_met_exactly(measured: list[ClockOffset]) -> None:
    clock = clock_of(measured)

    at = np.array([each.at_ns for each in measured])

    assert (clock.to_common(at) - at).tolist() == [each.offset_ns for each in measured]
    assert clock.error_ns(at).tolist() == [each.error_ns for each in measured]


@given(measurements(), st.data())
def test_the_order_of_the_measurements_does_not_matter(
    measured: list[ClockOffset], data: st.DataObject
) -> None:
    assert clock_of(measured) == clock_of(data.draw(st.permutations(measured)))


@given(measurements(), st.lists(st.integers(0, 100_000 * SECOND_NS), min_size=2))
def test_no_time_runs_backwards(measured: list[ClockOffset], since: list[int]) -> None:
    times = np.sort(np.array(since) + START_NS)

    assert (np.diff(clock_of(measured).to_common(times)) >= 0).all()


@given(measurements(), st.lists(st.integers(-(10**13), 10**14), min_size=1))
def test_the_bound_grows_with_the_time_from_a_measurement(
    measured: list[ClockOffset], since: list[int]
) -> None:
    times = np.array(since) + START_NS
    clock = clock_of(measured)
    at = np.array([each.at_ns for each in measured])
    errors = np.array([each.error_ns for each in measured])

    nearest = np.abs(times[:, None] - at[None, :]).min(axis=1)
    found = clock.error_ns(times)

    between = (times >= at.min()) & (times <= at.max())
    grown = nearest * np.where(between, WANDER, DRIFT)
    assert (found >= errors.min() + np.floor(grown)).all()
    assert (found <= errors.max() + np.ceil(grown) + 1).all()
    assert found.max() <= clock.worst_error_ns(int(times.min()), int(times.max()))


@given(st.integers(-(10**18), 10**18), st.integers(0, 5_000_000), st.integers(0, 86_400))
def test_one_measurement_alone_holds_for_all_times(offset: int, error: int, later_s: int) -> None:
    clock = clock_of([ClockOffset(offset, error, START_NS)])
    times = np.array([START_NS + later_s * SECOND_NS])

    assert clock.to_common(times)[0] - times[0] == offset
    assert clock.error_ns(times)[0] == error + np.ceil(later_s * SECOND_NS * DRIFT)


@given(
    st.floats(-DRIFT, DRIFT),
    st.lists(st.integers(0, 36_000), min_size=2, max_size=6, unique=True),
    st.lists(st.floats(-1, 1), min_size=6, max_size=6),
    st.integers(0, 36_000),
)
def test_a_clock_of_steady_drift_stays_within_the_stated_bound(
    drift: float, seconds: list[int], off: list[float], when: int
) -> None:
    """Each measurement is off by as much as its own bound allows."""
    truth = lambda at: 7_000_000_000 + round((at - START_NS) * drift)
    measured = [
        ClockOffset(truth(at) + int(share * 2_000_000), 2_000_000, at)
        for at, share in zip([START_NS + s * SECOND_NS for s in seconds], off, strict=False)
    ]
    clock = clock_of(measured)
    times = np.array([START_NS + when * SECOND_NS])

    found = clock.to_common(times)[0] - times[0]

    assert abs(found - truth(int(times[0]))) <= clock.error_ns(times)[0] + 1


@given(
    st.lists(
        st.builds(
            ClockOffset,
            st.integers(-(2**62), 2**62),
            st.integers(0, 60 * SECOND_NS),
            st.integers(0, 2**62),
        ),
        max_size=6,
    )
)
def test_no_measurement_however_wrong_does_harm(measured: list[ClockOffset]) -> None:
    clock = clock_of(measured)
    times = START_NS + np.arange(0, 10**14, 10**12)

    assert (np.diff(clock.to_common(times)) >= 0).all()
    assert (clock.error_ns(times) >= 0).all()
