"""Rows of different length laid end to end, and the part of each that overlaps a stretch of time.

Row i lies from `starts[i]` to `starts[i + 1]`. Ranks lose records, join late and end early, so no
step has a fixed place; all rows are searched at once, each halving of all of them one operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]  # of any width


@dataclass(frozen=True)
class Ranges:
    """From `first` up to and without `last`, one range a row; empty where they are equal."""

    first: Ints
    last: Ints

    @property
    def sizes(self) -> Ints:
        return np.asarray(self.last - self.first)

    def indices(self) -> Ints:
        """Of all elements, row after row."""
        sizes = self.sizes
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        return np.asarray(np.arange(total) + np.repeat(self.first - (ends - sizes), sizes))

    def rows(self) -> Ints:
        """The row of each element that `indices` names."""
        return np.asarray(np.repeat(np.arange(len(self.first)), self.sizes))


def starts_of(row: Numbers, rows: int) -> Ints:
    """Where the rows begin, of a sorted column of row numbers; rows may be empty."""
    return np.concatenate([[0], np.cumsum(np.bincount(row.astype(np.int64), minlength=rows))])


@dataclass(frozen=True)
class Ragged:
    """Elements of rows; `begin` and `reach`, the latest end so far, ascend within each row."""

    starts: Ints
    begin: Floats
    reach: Floats

    def overlapping(self, rows: Ints, t0: float, t1: float) -> Ranges:
        """What of these rows overlaps [t0, t1], as one range a row.

        Where elements of a row overlap each other, a range may hold some that ended before t0.
        """
        low, high = self.starts[rows], self.starts[rows + 1]
        first = _first_where(self.reach, low, high, t0, or_equal=True)
        last = _first_where(self.begin, first, high, t1, or_equal=False)
        return Ranges(first, last)

    def changing(self, rows: Ints, t0: float, t1: float) -> Ranges:
        """What of these rows begins in [t0, t1), and the one that began last before it."""
        low, high = self.starts[rows], self.starts[rows + 1]
        first = _first_where(self.begin, low, high, t0, or_equal=False)
        last = _first_where(self.begin, first, high, t1, or_equal=True)
        return Ranges(np.maximum(low, first - 1), last)


def _first_where(values: Floats, low: Ints, high: Ints, limit: float, *, or_equal: bool) -> Ints:
    """In each range, the first place whose value is above the limit (or equal to it)."""
    low, high = low.copy(), high.copy()
    if not len(values):
        return low
    widest = int((high - low).max(initial=0))
    for _ in range(widest.bit_length()):
        middle = (low + high) >> 1
        found = values[np.minimum(middle, len(values) - 1)]
        below = (found < limit) if or_equal else (found <= limit)
        is_open = low < high
        low = np.where(is_open & below, middle + 1, low)
        high = np.where(is_open & ~below, middle, high)
    return low


def running_reach(row: Numbers, end: Floats) -> Floats:
    """The latest end so far within each row."""
    if not len(end):
        return end
    new_row = np.concatenate([[True], row[1:] != row[:-1]])
    # rows laid one above the other, so that one running maximum serves all of them
    shift = np.cumsum(new_row) * (float(end.max()) - float(end.min()) + 1.0)
    return np.asarray(np.maximum.accumulate(end + shift) - shift)
