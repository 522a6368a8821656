"""Time of one rank in chosen segments up to given moments, and its rows in a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def spent_until(begin: Ints, end: Ints, inside: Bools, times: Ints) -> Ints:
    """Nanoseconds in the marked segments up to each moment; the segments do not overlap."""
    return Moments.of(begin, end, times).spent(spent_before(begin, end, inside), inside)


def spent_before(begin: Ints, end: Ints, inside: Bools) -> Ints:
    """Nanoseconds in the marked segments before each segment."""
    length = np.where(inside, end - begin, 0)
    return np.cumsum(length) - length


@dataclass(frozen=True)
class Moments:
    """Where moments lie among segments: the last that began, and how long it had lasted."""

    index: Ints
    partial: Ints

    @classmethod
    def of(cls, begin: Ints, end: Ints, times: Ints) -> Moments:
        index = np.maximum(np.searchsorted(begin, times, "right") - 1, 0)
        lasted = np.maximum(times - begin[index], 0)
        return cls(index, np.minimum(lasted, end[index] - begin[index]))

    def spent(self, before: Ints, inside: Bools) -> Ints:
        return np.asarray(before[self.index] + np.where(inside[self.index], self.partial, 0))


class ByRank:
    """Columns of a frame that holds one rank after the other, as arrays of each rank."""

    def __init__(self, frame: pd.DataFrame, *names: str) -> None:
        ranks = frame["rank"].to_numpy()
        edges = np.flatnonzero(ranks[1:] != ranks[:-1]) + 1
        first, last = [0, *edges.tolist()], [*edges.tolist(), len(ranks)]
        self._slices = {
            int(ranks[begin]): slice(begin, end)
            for begin, end in zip(first, last, strict=True)
            if end > begin
        }
        self._columns = [frame[name].to_numpy() for name in names]

    def of(self, rank: int) -> list[Ints]:
        own = self._slices.get(rank, slice(0, 0))
        return [column[own] for column in self._columns]


def rows_of(frame: pd.DataFrame, rank: int) -> pd.DataFrame:
    """The rows of one rank; the frames of `Tables` hold one rank after the other."""
    return frame.iloc[_slice_of(frame["rank"].to_numpy(), rank)]


def _slice_of(ranks: npt.NDArray[Any], rank: int) -> slice:
    """By a search with numbers of the same size, since others would have all of them copied."""
    return slice(*np.searchsorted(ranks, np.array([rank, rank + 1], ranks.dtype)))
