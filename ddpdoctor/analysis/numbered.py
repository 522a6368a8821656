"""The calls of each rank by their place in the order of a group, to find those of other ranks.

Ranks of one job mostly make the same calls: then their places are the same, and nothing is looked
up. What costs time here is done for each rank alone, so that no table of all calls is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpdoctor.recordedcalls import is_matched
from ddpdoctor.tables import Tables

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_SEQ_BITS = 40  # of a key


@dataclass(frozen=True)
class Numbered:
    """Calls of one rank that are put together with those of others, each once, by their keys."""

    keys: Ints
    rows: Ints  # among the calls of the rank

    @classmethod
    def of(cls, flags: Ints, group: Ints, seq: Ints) -> Numbered:
        keys = key_of(group, seq)
        rows = np.flatnonzero(is_matched(flags, group))
        if len(rows) < len(keys):
            keys = keys[rows]
        if (keys[1:] > keys[:-1]).all():
            return cls(keys, rows)
        keys, first = np.unique(keys, return_index=True)
        return cls(keys, rows[first])

    def find(self, wanted: Ints) -> tuple[Ints, Bools]:
        """The row of each of these keys, and whether there is one."""
        if not len(self.keys):
            return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
        place = np.searchsorted(self.keys, wanted) % len(self.keys)
        return self.rows[place], self.keys[place] == wanted


class CallsOfRanks:
    """Columns of the calls of each rank, and where among them given calls are."""

    def __init__(self, tables: Tables, *names: str) -> None:
        self._calls, self._names = tables.calls, names
        self._last: tuple[list[Ints], Numbered] | None = None

    def of(self, rank: int) -> tuple[Numbered, list[Ints]]:
        """The numbers of a rank's calls, and the named columns of all its calls."""
        columns = self._calls.recorded_of(rank, "flags", "group", "seq", *self._names)
        last = self._last  # of another rank, which two threads may set
        if last is None or not _are_equal(last[0], columns[:3]):
            last = self._last = (columns[:3], Numbered.of(*columns[:3]))
        return last[1], columns[3:]


def _are_equal(some: list[Ints], others: list[Ints]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


def key_of(group: Ints, seq: Ints) -> Ints:
    return np.asarray((group.astype(np.int64) << _SEQ_BITS) | seq)
