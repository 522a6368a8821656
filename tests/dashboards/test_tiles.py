"""Ragged rows and pictures of them, against the slow and plain way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.analysis.ragged import Ragged, running_reach, starts_of
from ddpdoctor.analysis.tiles import (
    CULPRIT,
    LEVELS,
    RECORDED,
    Bins,
    blame_by_row,
    blame_codes,
    phase_changes,
    phase_tile,
    pooled_columns,
    worst_rows,
)
from ddpdoctor.analysis.timeline import Spans, Timeline, build_timeline
from ddpdoctor.events import Phase
from tests.dashboards.shown import LATE_RANK, late_analysis

Row = list[tuple[int, int, int]]  # begin, end, phase
BASE = build_timeline(late_analysis(steps=3))
ROWS = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 7)), max_size=12),
    min_size=1,
    max_size=5,
)


def laid_out(rows: list[list[tuple[int, int, int]]]) -> list[Row]:
    """From gaps and lengths to spans that do not overlap."""
    made: list[Row] = []
    for row in rows:
        now, spans = 0, []
        for gap, length, phase in row:
            spans.append((now + gap, now + gap + length, phase))
            now += gap + length
        made.append(spans)
    return made


def timeline_of(rows: list[Row]) -> Timeline:
    flat = [(rank, *span) for rank, row in enumerate(rows) for span in row]
    columns = np.array(flat, np.float64).reshape(-1, 4).T
    spans = Spans(
        np.arange(len(flat)), columns[0].astype(np.int32), np.zeros(len(flat), np.int32),
        columns[3].astype(np.uint8), columns[1], columns[2],
    )  # fmt: skip
    return replace(BASE, ranks=tuple(range(len(rows))), spans=spans)


@given(ROWS, st.integers(0, 40), st.integers(0, 40))
def test_window_of_ragged_rows(gaps: list[list[tuple[int, int, int]]], t0: int, wide: int) -> None:
    rows = laid_out(gaps)
    timeline = timeline_of(rows)
    chosen = np.arange(len(rows))[::2]
    spans, _ = timeline.window(t0, t0 + wide, chosen)
    got = list(zip(spans.rank, spans.begin_ms, spans.end_ms, spans.phase, strict=True))
    expected = [
        (rank, *span)
        for rank in chosen
        for span in rows[rank]
        if span[1] >= t0 and span[0] <= t0 + wide
    ]
    assert got == expected


@given(ROWS, st.integers(-5, 30), st.integers(1, 7))
def test_a_bin_shows_the_phase_in_its_middle(
    gaps: list[list[tuple[int, int, int]]], t0: int, wide: int
) -> None:
    rows = laid_out(gaps)
    timeline = timeline_of(rows)
    nobody = np.zeros((len(rows), len(timeline.grid.syncs)), np.uint8)
    chosen = timeline.rows[::-1]
    tile = phase_tile(phase_changes(timeline, nobody), chosen, Bins(float(t0), float(wide), 9))
    assert tile.shape == (len(rows), 9)
    for row, spans in zip(range(len(rows)), rows[::-1], strict=True):
        for place in range(9):
            middle = t0 + (place + 0.5) * wide
            shown = [phase + 1 for begin, end, phase in spans if begin <= middle < end]
            assert tile[row, place] == (shown[0] if shown else 0)


@given(st.lists(st.lists(st.integers(0, 20), max_size=8), min_size=1, max_size=4))
def test_calls_that_overlap_are_found_by_their_reach(lengths: list[list[int]]) -> None:
    row = np.repeat(np.arange(len(lengths)), [len(own) for own in lengths])
    begin = np.concatenate([np.arange(len(own)) for own in lengths]).astype(np.float64)
    end = begin + np.concatenate([np.array(own) for own in lengths])
    ragged = Ragged(starts_of(row, len(lengths)), begin, running_reach(row, end))
    found = ragged.overlapping(np.arange(len(lengths)), 4.0, 6.0).indices()
    assert set(np.flatnonzero((end >= 4.0) & (begin <= 6.0))) <= set(found)
    assert np.all(begin[found] <= 6.0)


def test_blame_is_quiet_but_for_the_culprit() -> None:
    codes = blame_codes(build_timeline(late_analysis()).grid)
    assert set(np.delete(codes, LATE_RANK, axis=0).ravel()) == {RECORDED}
    assert set(codes[LATE_RANK]) == {LEVELS * 16 + RECORDED + Phase.BACKWARD}


def test_only_the_phase_that_made_a_rank_late_is_marked() -> None:
    timeline = build_timeline(late_analysis())
    blame = blame_by_row(timeline)
    changes = phase_changes(timeline, blame)
    tile = phase_tile(changes, timeline.rows, Bins(0.0, timeline.duration_ms / 512, 512))
    marked = tile >= CULPRIT
    assert set(np.flatnonzero(marked.any(axis=1))) == {LATE_RANK}
    assert set(tile[marked]) == {CULPRIT + 1 + Phase.BACKWARD}


def test_a_rank_without_a_step_has_a_row_of_nothing() -> None:
    timeline = build_timeline(late_analysis())
    more = replace(timeline, ranks=(*timeline.ranks, 9), hosts=(*timeline.hosts, "node0"))
    assert blame_by_row(more).shape[0] == 5
    assert not blame_by_row(more)[4].any()


def test_pooling_keeps_the_worst_and_ends_with_nothing() -> None:
    codes = np.array([[8, 8, 255, 8, 24]], np.uint8)
    assert pooled_columns(codes, 0, 4, 2).tolist() == [[8, 255, 24, 0]]
    assert pooled_columns(codes, 4, 2, 2).tolist() == [[24, 0]]
    assert pooled_columns(codes, 100, 2, 4).tolist() == [[0, 0]]


def test_rows_put_together_show_the_worst_rank_of_those_steps() -> None:
    codes = np.full((5, 10), 8, np.uint8)
    codes[1, 3] = codes[4, 9] = 200
    assert worst_rows(codes, 0, 512, 2, slice(0, 5)).tolist() == [1, 2, 4]
    assert worst_rows(codes, 0, 512, 2, slice(5, 10)).tolist() == [0, 2, 4]
    assert worst_rows(codes, 2, 2, 1, slice(0, 10)).tolist() == [2, 3]
