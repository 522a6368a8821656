"""The fields of many records, each together in memory.

Asking one field of records that lie one after the other goes through all of their bytes, and costs
as much as asking all: so all are taken in one pass, a few records at a time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_WORD: Final = 8  # bytes; no field of a record crosses a multiple of it
_AT_ONCE: Final = 1024  # records, which a CPU's own cache holds


class Columns:
    """By field, of the records in these rows, or of all. They are as long as some words."""

    def __init__(self, records: npt.NDArray[np.void], rows: Ints | None = None) -> None:
        self._fields: Any = records.dtype.fields
        shape = (len(records), records.dtype.itemsize // _WORD)
        words = np.ascontiguousarray(records).view("<i8").reshape(shape)
        count = len(records) if rows is None else len(rows)
        self._words = np.empty((shape[1], count), "<i8")
        for first in range(0, count, _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            part = words[some] if rows is None else words.take(rows[some], axis=0)
            self._words[:, some] = part.T

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        dtype, offset = self._fields[name][:2]
        word, within = divmod(offset, _WORD)
        parts = self._words[word].view(dtype)
        return np.asarray(parts[within // dtype.itemsize :: _WORD // dtype.itemsize])


def is_one_of(codes: npt.NDArray[Any], *wanted: int) -> npt.NDArray[np.bool_]:
    """As np.isin, for few."""
    found = codes == int(wanted[0])
    for each in wanted[1:]:
        found |= codes == int(each)
    return np.asarray(found)
