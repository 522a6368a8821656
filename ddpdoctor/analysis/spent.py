"""Time of one rank in chosen segments up to given moments, and its rows in a frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]


def spent_until(begin: Ints, end: Ints, inside: npt.NDArray[np.bool_], times: Ints) -> Ints:
    """Nanoseconds in the marked segments up to each moment; the segments do not overlap."""
    length = np.where(inside, end - begin, 0)
    before = np.concatenate([[0], np.cumsum(length)])
    index = np.clip(np.searchsorted(begin, times, "right") - 1, 0, len(begin) - 1)
    partial = np.clip(times - begin[index], 0, end[index] - begin[index])
    return before[index] + np.where(inside[index], partial, 0)


class ByRank:
    """Columns of a frame that holds one rank after the other, as arrays of each rank."""

    def __init__(self, frame: pd.DataFrame, *names: str) -> None:
        self._ranks = frame["rank"].to_numpy()
        self._columns = [frame[name].to_numpy() for name in names]

    def of(self, rank: int) -> list[Ints]:
        own = _slice_of(self._ranks, rank)
        return [column[own] for column in self._columns]


def rows_of(frame: pd.DataFrame, rank: int) -> pd.DataFrame:
    """The rows of one rank; the frames of `Tables` hold one rank after the other."""
    return frame.iloc[_slice_of(frame["rank"].to_numpy(), rank)]


def _slice_of(ranks: npt.NDArray[Any], rank: int) -> slice:
    """By a search with numbers of the same size, since others would have all of them copied."""
    return slice(*np.searchsorted(ranks, np.array([rank, rank + 1], ranks.dtype)))
