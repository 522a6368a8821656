"""The collectives of a run as a table, of which only what is asked for is made.

A frame of all calls with all that is known of them takes more room than the records themselves,
and nearly all questions are about one rank, a few columns, or a few calls.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.gathering import gathered
from ddpdoctor.matching import Matched

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Part = dict[str, npt.NDArray[Any]]  # columns, by name


@dataclass(frozen=True)
class CollectiveRow:
    """One collective on one rank. Times that are not known are -1.

    `complete` says that every rank of the group was seen to arrive. `last_rank` arrived last;
    `caused_ns` is last minus second-last arrival.
    """

    rank: int
    group: int
    seq: int
    op: int
    flags: int
    bucket: int
    step: int
    sync: int
    site: int
    nbytes: int
    arrival_ns: int
    completion_ns: int
    first_arrival_ns: int
    last_arrival_ns: int
    last_rank: int
    caused_ns: int
    complete: bool
    wait_ns: int
    queue_ns: int
    transfer_ns: int


_NAMES = tuple(field.name for field in fields(CollectiveRow))


class CallTable:
    """Rows are of `CollectiveRow`, one rank after the other."""

    def __init__(self, matched: Matched, step: Ints) -> None:
        self._matched = matched
        self._recorded = matched.recorded.columns() | {"step": step}

    def __len__(self) -> int:
        return len(self._recorded["rank"])

    @property
    def ranks(self) -> list[int]:
        """Those with calls."""
        return [rank for rank, own in self._matched.places.items() if own.stop > own.start]

    def recorded(self, *names: str) -> list[npt.NDArray[Any]]:
        """Columns up to `completion_ns`, of all ranks."""
        return [self._recorded[name] for name in names]

    def recorded_of(self, rank: int, *names: str) -> list[npt.NDArray[Any]]:
        """The same of one rank."""
        own = self._matched.places.get(rank, slice(0, 0))
        return [self._recorded[name][own] for name in names]

    def of_rank(self, rank: int) -> pd.DataFrame:
        """All columns of one rank."""
        return pd.DataFrame(self._columns_of(rank), copy=False)

    def where(self, chosen: Bools, *names: str) -> pd.DataFrame:
        """These columns of the chosen rows, all where not said."""

        def part_of(rank: int) -> Part:
            rows = np.flatnonzero(chosen[self._matched.places[rank]])
            if not len(rows):
                return {}
            own = self._columns_of(rank)
            return {name: own[name][rows] for name in names or _NAMES}

        places = self._matched.places
        columns = gathered(filter(None, map(part_of, places)), len(places))
        if columns:
            return pd.DataFrame(columns, copy=False)
        return self.of_rank(next(iter(places))).iloc[:0][list(names or _NAMES)]

    def all(self) -> pd.DataFrame:
        """All columns of all rows; those recorded are not copied."""

        def part_of(rank: int) -> Part:
            own = self._matched.of_rank(rank).columns()
            return {name: column for name, column in own.items() if name not in self._recorded}

        places = self._matched.places
        columns = self._recorded | gathered(map(part_of, places), len(places))
        return pd.DataFrame({name: columns[name] for name in _NAMES}, copy=False)

    def _columns_of(self, rank: int) -> Part:
        own = self._matched.of_rank(rank).columns()
        own["step"] = self._recorded["step"][self._matched.places[rank]]
        return {name: own[name] for name in _NAMES}
