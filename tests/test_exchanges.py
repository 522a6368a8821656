"""Sums of the script: laws of what tells a total that is summed in place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.analysis.exchanges import LEAST_LOOKS, Sum, SumsOfLine, regrown
from ddpdoctor.modelevents import Summed

LOOKS = (1, 2, 4, 8, 16, 32)
worlds = st.integers(2, 64)
added = st.lists(st.floats(1, 10), min_size=40, max_size=40)


def line(given_by_call: Sequence[float], world: int) -> SumsOfLine:
    """What each rank gave at the calls that are looked at, alike on all."""
    sums = [
        Sum(call, again, {
            rank: Summed("0", call, call, again, (given_by_call[call],), None)
            for rank in range(world)
        })
        for look in LOOKS
        for call, again in ((look, False), (look + 1, True))
    ]  # fmt: skip
    return SumsOfLine(None, tuple(range(world)), tuple(sums))


@settings(deadline=None)
@given(worlds, st.floats(0.1, 1e6))
def test_an_even_count_that_is_summed_in_place_is_found(world: int, step: float) -> None:
    totals = list(accumulate([step] * 40, lambda total, more: world * total + more))

    (found,) = regrown([line(totals, world)])

    assert found.looks >= LEAST_LOOKS


@settings(deadline=None)
@given(worlds, added)
def test_a_total_of_which_a_copy_is_summed_is_not(world: int, steps: list[float]) -> None:
    assert list(regrown([line(list(accumulate(steps)), world)])) == []


@settings(deadline=None)
@given(worlds, added)
def test_numbers_of_a_step_are_not(world: int, steps: list[float]) -> None:
    assert list(regrown([line(steps, world)])) == []


@pytest.mark.parametrize("world", [2, 8])
def test_an_average_that_is_kept_is_not(world: int) -> None:
    averages = list(accumulate([float(n) for n in range(1, 41)], lambda a, x: 0.9 * a + 0.1 * x))

    assert list(regrown([line(averages, world)])) == []
