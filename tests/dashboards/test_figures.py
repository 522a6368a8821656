"""The charts, by the numbers in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpdoctor.analysis.grid import build_grid, pooled, step_series
from ddpdoctor.analysis.headline import headline
from ddpdoctor.dashboards.figures import excess_map, rank_bars, shown_phases, step_areas
from ddpdoctor.dashboards.palette import DARK, LIGHT
from ddpdoctor.events import Phase
from tests.dashboards.shown import LATE_MS, LATE_RANK, late_analysis

ANALYSIS = late_analysis()
GRID = build_grid(ANALYSIS, 0)


def test_bars_add_up_to_the_step() -> None:
    figure = rank_bars(ANALYSIS.ranks, "light")
    sums = np.sum([bar.x for bar in figure.data], axis=0)
    assert sums == pytest.approx([stats.times.step_ms for stats in ANALYSIS.ranks])
    assert list(figure.data[0].y) == ["rank 0", "rank 1", "rank 2", "rank 3"]


def test_only_wait_is_hatched_and_the_culprit_has_none() -> None:
    figure = rank_bars(ANALYSIS.ranks, "light")
    hatched = [bar for bar in figure.data if bar.marker.pattern.shape]
    assert [bar.name for bar in hatched] == ["wait for other ranks"]
    waits = list(hatched[0].x)
    assert waits[LATE_RANK] == pytest.approx(0.0, abs=0.1)
    assert waits[0] == pytest.approx(LATE_MS, abs=0.5)


def test_bars_show_one_term_where_waits_are_not_known() -> None:
    ranks = [
        replace(stats, times=replace(stats.times, wait_ms=None, transfer_ms=None))
        for stats in ANALYSIS.ranks
    ]
    names = [bar.name for bar in rank_bars(ranks, "light").data]
    assert "wait and transfer" in names
    assert "transfer" not in names
    assert "wait for other ranks" not in names


def test_map_shows_the_late_rank_in_every_step() -> None:
    (heat,) = excess_map(pooled(GRID, 400), "light").data
    cells = np.asarray(heat.z)
    assert cells.shape == (4, 40)
    assert np.all(cells[LATE_RANK] > LATE_MS - 1)
    assert heat.zmin == 0
    assert heat.zmax == pytest.approx(LATE_MS, abs=1)


def test_areas_add_up_to_the_mean_step() -> None:
    series = step_series(GRID)
    figure = step_areas(series, "dark")
    assert np.allclose(np.sum([area.y for area in figure.data], axis=0), series.step_ms)


@pytest.mark.parametrize(("theme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_colours_follow_the_theme(theme: str, palette: object) -> None:
    bars = rank_bars(ANALYSIS.ranks, theme).data
    colours = [bar.marker.color for bar in bars]
    expected = LIGHT if palette is LIGHT else DARK
    assert colours == [expected.phases[phase] for phase in shown_phases(True)]


def test_palettes_have_a_colour_for_each_phase() -> None:
    assert set(LIGHT.phases) == set(DARK.phases) == set(Phase)


def test_headline_of_a_late_rank() -> None:
    numbers = headline(ANALYSIS)
    assert numbers.wait_ms == pytest.approx(LATE_MS * 3 / 4, abs=0.5)
    assert numbers.wait_share == pytest.approx(numbers.wait_ms / numbers.step_ms)
    assert 0 < numbers.trained_share < 1
