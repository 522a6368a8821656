"""Regular stalls and rises, told from noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.analysis.shapes import BLOCKS, DRIFT_STEPS, period, rise, stalls

STEPS = np.arange(100, 220)
SEEDS = range(30)


def noise(seed: int, level: float = 20.0, spread: float = 0.05) -> np.ndarray:
    return level * np.random.default_rng(seed).normal(1, spread, len(STEPS))


def begins(series: np.ndarray) -> np.ndarray:
    return np.cumsum(series) - series


@pytest.mark.parametrize("every", [2, 3, 10, 25])
@pytest.mark.parametrize("first", [0, 1])
def test_every_nth_step_is_found_with_its_n(every: int, first: int) -> None:
    series = noise(0) + 100.0 * (STEPS % every == first)
    found = period(stalls(series, 20.0), STEPS, begins(series))
    assert found is not None
    assert (found.every_steps, found.every_s) == (every, None)
    assert found.stall_ms == pytest.approx(100, rel=0.05)


def test_the_base_interval_is_named_and_not_a_multiple() -> None:
    series = noise(0) + 100.0 * (STEPS % 5 == 0) + 100.0 * (STEPS % 10 == 0)
    found = period(stalls(series, 20.0), STEPS, begins(series))
    assert found is not None
    assert found.every_steps == 5


def test_an_interval_in_seconds_is_none_in_steps() -> None:
    """Every 400 ms something runs; steps of 10 to 40 ms end when they end."""
    series = np.random.default_rng(1).uniform(10, 40, 400)
    due = 400.0
    now = 0.0
    for index in range(len(series)):
        if now >= due:
            series[index] += 90.0
            due = now + 400.0
        now += series[index]
    found = period(stalls(series, 25.0), np.arange(400), begins(series))
    assert found is not None
    assert found.every_steps is None
    assert found.every_s == pytest.approx(0.42, abs=0.06)


@pytest.mark.parametrize("seed", SEEDS)
def test_stalls_at_random_have_no_interval(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    series = noise(seed) + 100.0 * (drawn.random(len(STEPS)) < 0.1)
    assert period(stalls(series, 20.0), STEPS, begins(series)) is None


@pytest.mark.parametrize("steps", [27, 50, 120])
def test_stalls_at_random_seldom_seem_regular(steps: int) -> None:
    """In short runs a few stalls lie evenly by chance; a healthy run of 27 steps was told so."""
    regular = 0
    for seed in range(3000):
        drawn = np.random.default_rng(seed)
        series = drawn.normal(20, 1, steps)
        series[drawn.choice(steps, drawn.integers(4, 10), replace=False)] += drawn.uniform(20, 100)
        regular += period(stalls(series, 20.0), np.arange(steps), begins(series)) is not None
    assert regular <= 3  # one in a thousand


@pytest.mark.parametrize("stalled", [0, 1, 2, 3])
def test_few_stalls_have_no_interval(stalled: int) -> None:
    series = noise(0)
    series[[10, 40, 70][:stalled]] += 100.0
    assert period(stalls(series, 20.0), STEPS, begins(series)) is None


@pytest.mark.parametrize("at", [30, 60, 90])
def test_a_rise_from_a_point_on_has_its_step(at: int) -> None:
    found = rise(noise(2) + 10.0 * (np.arange(len(STEPS)) >= at), 1.0)
    assert found is not None
    assert found.since == pytest.approx(at, abs=len(STEPS) / BLOCKS)
    assert found.after - found.before == pytest.approx(10, abs=1)


def test_a_gradual_rise_has_no_step_and_stalls_do_not_make_one() -> None:
    slow = noise(3) + np.linspace(0, 10, len(STEPS)) + 200.0 * (STEPS % 20 == 0)
    found = rise(slow, 1.0)
    assert found is not None
    assert found.since is None
    assert found.added == pytest.approx(5, abs=13)  # the stalls are in the mean, and not in it


def test_five_percent_over_three_hundred_steps_are_seen() -> None:
    """As slow a rise as methods that look for sudden changes do not see."""
    drawn = np.random.default_rng(4)
    series = 20 * (1 + 0.05 * np.arange(300) / 300) + drawn.normal(0, 0.4, 300)
    assert rise(series, 0.5) is not None


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_does_not_rise(seed: int) -> None:
    assert rise(noise(seed, spread=0.2), 1.0) is None


@pytest.mark.parametrize(
    "shape",
    [
        np.where((STEPS > 130) & (STEPS < 180), 10.0, 0.0),  # it goes away
        np.linspace(10, 0, len(STEPS)),  # faster and faster
        np.where(STEPS < 110, 50.0, 0.0),  # it settles late
    ],
)
def test_what_does_not_last_is_no_rise(shape: np.ndarray) -> None:
    assert rise(noise(5, spread=0.01) + shape, 1.0) is None


def test_few_steps_do_not_rise() -> None:
    assert rise(np.linspace(1, 100, DRIFT_STEPS - 1), 1.0) is None


@given(st.lists(st.floats(0, 1e4), max_size=80))
def test_any_series_is_judged(series: list[float]) -> None:
    values = np.array(series)
    found = stalls(values, 10.0)
    assert (found.over_ms > 0).all()
    period(found, np.arange(len(values)), begins(values))
    lasting = rise(values, 1.0)
    assert lasting is None or lasting.after > lasting.before
