"""The arithmetic of the benchmarks. What they measure is asserted nowhere."""

from __future__ import annotations

import random

import pytest

from benchmarks.overhead import median_bounds


@pytest.mark.parametrize(
    ("values", "first", "last"),
    # by tables of the sign test at 95 %
    [(1, 0, 0), (5, 0, 4), (6, 0, 5), (9, 1, 7), (20, 5, 14), (40, 13, 26)],
)
def test_bounds_of_a_median(values: int, first: int, last: int) -> None:
    shuffled = random.Random(0).sample(range(values), values)

    assert median_bounds([float(value) for value in shuffled]) == (first, last)


def test_the_bounds_hold_the_median_as_often_as_they_say() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(1000):
        low, high = median_bounds([draw.random() for _ in range(25)])
        held += low <= 0.5 <= high

    assert 930 <= held <= 985
