"""What the canvas gets: spans, collectives, cells, and the numbers of one of them."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from ddpdoctor.analysis import Analysis, analyze
from ddpdoctor.analysis.details import call_detail, span_detail
from ddpdoctor.analysis.grid import build_grid, median_of_others, place_of, pooled, step_series
from ddpdoctor.analysis.timeline import Timeline, build_timeline
from ddpdoctor.dashboards.wire import encode, mark_columns, step_columns, window_columns
from ddpdoctor.events import Phase
from ddpdoctor.samples import sample_folder
from ddpdoctor.tracefile import load_run
from tests.builders import StepTimes, rank_info, simulate, with_ranks
from tests.dashboards.shown import LATE_MS, LATE_RANK, late_analysis, late_run, marked_run


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return build_timeline(late_analysis())


def test_spans_of_a_rank_tile_its_time(timeline: Timeline) -> None:
    for rank in timeline.ranks:
        own = timeline.spans.rank == rank
        begin, end = timeline.spans.begin_ms[own], timeline.spans.end_ms[own]
        assert np.allclose(begin[1:], end[:-1])
        assert np.all(end > begin)


def test_ids_are_positions_in_rank_and_time_order(timeline: Timeline) -> None:
    for table in (timeline.spans, timeline.calls):
        assert np.array_equal(table.id, np.arange(len(table.id)))
        assert np.all(np.diff(table.rank) >= 0)
        same_rank = np.diff(table.rank) == 0
        assert np.all(np.diff(table.begin_ms)[same_rank] >= 0)


def test_victims_wait_and_the_culprit_does_not(timeline: Timeline) -> None:
    spans = timeline.spans
    waits = spans.phase == Phase.WAIT
    assert set(spans.rank[waits]) == set(timeline.ranks) - {LATE_RANK}
    lengths = (spans.end_ms - spans.begin_ms)[waits]
    assert np.median(lengths) == pytest.approx(LATE_MS, abs=1.0)


def test_window_holds_what_overlaps_it_and_no_more(timeline: Timeline) -> None:
    t0, t1 = 200.0, 300.0
    spans, calls = timeline.window(t0, t1)
    for part, whole in ((spans, timeline.spans), (calls, timeline.calls)):
        assert 0 < len(part.id) < len(whole.id)
        assert np.all((part.end_ms >= t0) & (part.begin_ms <= t1))
        left_out = np.setdiff1d(whole.id, part.id)
        assert np.all((whole.end_ms[left_out] < t0) | (whole.begin_ms[left_out] > t1))


def test_a_window_without_collectives(timeline: Timeline) -> None:
    with_calls, without = (
        timeline.window(200.0, 300.0),
        timeline.window(200.0, 300.0, with_calls=False),
    )
    assert np.array_equal(with_calls[0].id, without[0].id)
    assert len(with_calls[1].id) > 0
    assert len(without[1].id) == 0


def test_calls_under_way_together_get_lines_of_their_own(timeline: Timeline) -> None:
    calls = timeline.calls
    for rank in timeline.ranks:
        own = np.flatnonzero(calls.rank == rank)
        together = calls.begin_ms[own[1:]] < calls.end_ms[own[:-1]]
        assert together.any() == (rank != LATE_RANK)
        assert np.all(calls.slot[own[1:]][together] != calls.slot[own[:-1]][together])
    assert calls.slots.max() == 2


def test_span_detail_compares_with_the_median_of_the_others(timeline: Timeline) -> None:
    late = np.flatnonzero(
        (timeline.spans.rank == LATE_RANK)
        & (timeline.spans.phase == Phase.BACKWARD)
        & (timeline.spans.sync == 20)
    )
    detail = span_detail(timeline, int(late[0]))
    assert detail is not None
    assert detail.sync == 20
    assert detail.step_phase_ms is not None
    assert detail.median_phase_ms == pytest.approx(10.0, abs=0.1)
    assert detail.step_phase_ms - detail.median_phase_ms == pytest.approx(LATE_MS, abs=0.1)
    assert detail.step_ms == pytest.approx(detail.median_step_ms)


def test_call_detail_names_the_last_and_joins_all_arrivals(timeline: Timeline) -> None:
    chosen = np.flatnonzero((timeline.calls.rank == 0) & (timeline.calls.sync == 20))[-1]
    detail = call_detail(timeline, int(chosen))
    assert detail is not None
    assert detail.last_rank == LATE_RANK
    assert detail.spread_ms == pytest.approx(LATE_MS, abs=0.1)
    assert detail.wait_ms == pytest.approx(LATE_MS, abs=0.1)
    assert [arrival.rank for arrival in detail.arrivals][-1] == LATE_RANK
    assert sorted(arrival.rank for arrival in detail.arrivals) == list(timeline.ranks)
    assert {int(timeline.calls.seq[each.call]) for each in detail.arrivals} == {detail.seq}


@pytest.mark.parametrize("number", [-1, 10**9])
def test_no_such_span_or_call(timeline: Timeline, number: int) -> None:
    assert span_detail(timeline, number) is None
    assert call_detail(timeline, number) is None


def test_own_excess_blames_the_late_rank_and_its_phase(timeline: Timeline) -> None:
    cells = pooled(timeline.grid, 10)
    assert cells.excess_ms.shape == (4, 10)
    row = list(cells.ranks).index(LATE_RANK)
    assert np.allclose(cells.excess_ms[row], LATE_MS, atol=0.1)
    assert set(cells.cause[row]) == {Phase.BACKWARD}
    others = np.delete(cells.excess_ms, row, axis=0)
    assert np.all(np.abs(others) < 0.1)


def test_with_two_ranks_the_other_is_the_measure() -> None:
    grid = build_grid(late_analysis_of_two(), 0)
    assert np.allclose(grid.own_excess_ms[1], 20.0, atol=0.1)
    assert np.allclose(grid.own_excess_ms[0], -20.0, atol=0.1)


def late_analysis_of_two() -> Analysis:
    return analyze(simulate(lambda rank, step: StepTimes(forward=5.0 + 20.0 * rank), 2, 20))


def test_a_rank_alone_exceeds_nobody() -> None:
    grid = build_grid(analyze(simulate(lambda rank, step: StepTimes(), 1, 5)), 0)
    assert np.all(grid.own_excess_ms == 0)


@given(
    arrays(
        np.float64,
        array_shapes(min_dims=2, max_dims=2, max_side=7),
        elements=st.one_of(st.floats(0, 100), st.just(np.nan)),
    )
)
def test_median_of_others_against_the_plain_way(cells: np.ndarray) -> None:
    got = median_of_others(cells)
    for (row, column), value in np.ndenumerate(got):
        others = np.delete(cells[:, column], row)
        known = others[np.isfinite(others)]
        expected = np.median(known) if len(known) else np.nan
        assert value == pytest.approx(expected, nan_ok=True)


def test_pooling_keeps_a_single_bad_step() -> None:
    def once(rank: int, step: int) -> StepTimes:
        return StepTimes(forward=105.0 if (rank, step) == (1, 17) else 5.0)

    analysis = analyze(simulate(once, 4, 40))
    cells = pooled(build_grid(analysis, 0), 4)
    row, column = np.unravel_index(np.argmax(cells.excess_ms), cells.excess_ms.shape)
    assert cells.ranks[row] == 1
    assert cells.first_sync[column] <= 18 <= cells.last_sync[column]
    assert cells.excess_ms[row, column] == pytest.approx(100.0, abs=0.1)


def test_place_of_is_the_step_in_which_the_culprit_was_worst() -> None:
    def once(rank: int, step: int) -> StepTimes:
        return StepTimes(input=50.0 if (rank, step) == (3, 30) else 1.0)

    grid = build_grid(analyze(simulate(once, 4, 40)), 0)
    assert place_of(grid, [3], [(1, 40)]) == 31
    assert place_of(grid, [], [(10, 20)]) == 15
    assert place_of(grid, [3], []) is None


def test_series_adds_up_to_the_step(timeline: Timeline) -> None:
    series = step_series(timeline.grid)
    assert len(series.sync) == 40
    assert np.allclose(series.phase_ms.sum(axis=0), series.step_ms)


def test_waits_are_not_told_apart_where_clocks_differ() -> None:
    def foreign(rank: int) -> str:
        return f"boot{rank}/time:[1]"

    run = with_ranks(
        late_run(),
        lambda trace: type(trace)(
            **{
                **vars(trace),
                "info": rank_info(trace.info.rank, 4, clock_id=foreign(trace.info.rank)),
            }
        ),
    )
    timeline = build_timeline(analyze(run))
    assert Phase.BLOCKED in timeline.grid.phases
    assert not np.isin(timeline.spans.phase, (Phase.WAIT, Phase.TRANSFER)).any()
    assert not timeline.calls.known.any()
    detail = call_detail(timeline, 0)
    assert detail is not None
    assert detail.wait_ms is None
    assert detail.last_rank is None


def test_columns_survive_the_wire(timeline: Timeline) -> None:
    sent = window_columns(*timeline.window(100.0, 200.0))
    sent |= mark_columns(build_timeline(analyze(marked_run())).marks)
    sent |= step_columns(step_series(timeline.grid))
    body = encode(sent)
    (length,) = struct.unpack_from("<I", body)
    head = json.loads(body[4 : 4 + length])
    assert [entry["name"] for entry in head] == list(sent)
    for entry in head:
        start = 4 + length + entry["offset"]
        assert start % 8 == 0
        got = np.frombuffer(body, "<" + entry["type"], entry["count"], start)
        assert np.array_equal(got, sent[entry["name"]], equal_nan=got.dtype.kind == "f")


def test_64_ranks_are_packed_whole() -> None:
    timeline = build_timeline(late_analysis(ranks=64, steps=30))
    assert timeline.ranks == tuple(range(64))
    assert len(np.unique(timeline.calls.rank)) == 64
    spans, calls = timeline.window(500.0, 600.0)
    assert len(encode(window_columns(spans, calls))) < 1_000_000


def test_named_spans_and_collections_are_marks_with_one_name_for_all_ranks() -> None:
    marks = build_timeline(analyze(marked_run())).marks

    assert marks.names == ("garbage collection", "<b>epoch</b>", "loss")
    assert np.all(np.diff(marks.rank) >= 0)
    for rank in range(2):  # which number the names the other way round
        own = marks.name[marks.rank == rank].tolist()
        assert sorted(own) == [0, 1, 2]
    near = marks.within(100.0, 101.0)
    assert near.name.tolist() == [1, 1]


def test_where_ranks_stand_is_drawn_up_to_the_moment_they_noted_it() -> None:
    timeline = build_timeline(analyze(load_run(sample_folder("hang"))))
    assert timeline.stands
    last = [np.flatnonzero(timeline.spans.rank == rank)[-1] for rank in timeline.ranks]
    assert timeline.spans.end_ms[last] == pytest.approx([timeline.duration_ms] * 3)
    assert list(timeline.spans.phase[last]) == [Phase.WAIT, Phase.BETWEEN, Phase.WAIT]
    for rank in timeline.ranks:
        own = timeline.spans.rank == rank
        assert np.all(np.diff(timeline.spans.begin_ms[own]) >= 0)
        assert np.all(np.diff(timeline.spans.end_ms[own]) >= 0)
