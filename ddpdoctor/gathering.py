"""Columns of many parts, one after the other, each written once to where it stays.

Joining parts that were kept writes all of them twice, and much of that time is the kernel's, for
the pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]

_MORE: Final = 1.25  # room beyond what the parts so far let expect; what is not written costs none


def gathered(parts: Iterable[Mapping[str, Column]], expected: int) -> dict[str, Column]:
    """The columns of all parts, of which so many are expected; none where there is no part."""
    every = Gathered(expected)
    for part in parts:
        every.add(part)
    return every.columns()


class Gathered:
    """Of so many parts with the same names. A column has the widest type that a part of it had."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._seen = 0
        self._used = 0
        self._columns: dict[str, Column] = {}

    def add(self, part: Mapping[str, Column]) -> None:
        """Columns of the same length."""
        self._seen += 1
        begin, self._used = self._used, self._used + len(next(iter(part.values())))
        for name, own in part.items():
            column = self._with_room(name, begin, own.dtype)
            column[begin : self._used] = own

    def _with_room(self, name: str, written: int, dtype: np.dtype[Any]) -> Column:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = np.empty(self._room(), dtype)
        wider = np.promote_types(column.dtype, dtype)
        if len(column) < self._used or wider != column.dtype:
            larger = np.empty(max(len(column), self._room()), wider)
            larger[:written] = column[:written]
            column = self._columns[name] = larger
        return column

    def _room(self) -> int:
        expected = self._used / self._seen * max(self._seen, self._parts)
        return max(self._used, int(expected * _MORE))

    def columns(self) -> dict[str, Column]:
        return {name: column[: self._used] for name, column in self._columns.items()}
