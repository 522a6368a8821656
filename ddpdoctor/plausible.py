"""Which detail records can be true. Files are foreign and disks flip bits: the rest is left out.

What follows may rely on it: kinds, phases and operations are known, nothing ends before it begins,
times lie within a year of the beginning, and the steps of a rank are in order and apart.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ddpdoctor.columns import Columns
from ddpdoctor.events import MOST_NAMES, Flag, Kind, Op, Part, Phase

Records = npt.NDArray[np.void]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]

_DAY_NS: Final = 86_400 * 10**9
EARLIEST_NS: Final = _DAY_NS  # before recording began: a span may be older than the recorder
LATEST_NS: Final = 366 * _DAY_NS  # after it
MOST_BYTES: Final = 2**50  # of one collective; more moves in no machine
_CODES: Final = np.arange(256)  # a code is a byte
_IS_PHASE: Final = np.isin(_CODES, [p for p in Phase if p not in (Phase.WAIT, Phase.TRANSFER)])
_IS_OP: Final = np.isin(_CODES, list(Op))
_IS_PART: Final = np.isin(_CODES, list(Part))


def plausible(detail: Records, began_ns: int) -> Records:
    """The records that can be true, in their order, which is that of their serial numbers."""
    columns = Columns(detail)
    alone = _alone(columns, began_ns)
    if not alone.all():
        detail = detail.take(np.flatnonzero(alone))
        columns = Columns(detail)
    kept = np.ones(len(detail), np.bool_)
    kind = columns["kind"]
    steps = np.flatnonzero(kind == int(Kind.STEP))
    kept[steps] = _apart(*(columns[name][steps] for name in ("step", "begin_ns", "end_ns")))
    calls = np.flatnonzero(kind == int(Kind.COLLECTIVE))
    kept[calls] = _numbered_once(*(columns[name][calls] for name in ("flags", "group", "seq")))
    return detail if kept.all() else detail.take(np.flatnonzero(kept))


def _alone(detail: Columns, began_ns: int) -> Bools:
    """Whether each record can be true, looked at alone."""
    kind, code = (np.ascontiguousarray(detail[name]) for name in ("kind", "code"))
    begin, issued, end = (detail[name] for name in ("begin_ns", "issued_ns", "end_ns"))
    begins = _in_time(begin, began_ns)
    ends = (end == 0) | ((end >= begin) & _in_time(end, began_ns))
    came_back = (issued == 0) | ((issued >= begin) & _in_time(issued, began_ns))
    known = (
        ((kind == int(Kind.SPAN)) & _IS_PHASE[code])
        | ((kind == int(Kind.COLLECTIVE)) & _IS_OP[code] & came_back)
        | ((kind == int(Kind.STEP)) & (end > begin))
        | ((kind == int(Kind.WAIT)) & (code == int(Phase.BLOCKED)))
        | ((kind == int(Kind.PART)) & _IS_PART[code] & (end > begin))
        | ((kind == int(Kind.NAMED)) & (detail["site"] <= MOST_NAMES))
    )
    return np.asarray(known & begins & ends & (detail["nbytes"] <= MOST_BYTES))


def _in_time(times: npt.NDArray[Any], began_ns: int) -> Bools:
    return np.asarray((times >= began_ns - EARLIEST_NS) & (times <= began_ns + LATEST_NS))


def _apart(number: Numbers, begin: Numbers, end: Numbers) -> Bools:
    """Steps that neither overlap nor repeat a number: as many as can be kept.

    Of steps that overlap the one that ends first stays, so that a wrong end costs one step and not
    all that follow.
    """
    kept = _first_of_each(number)
    if (begin[1:] >= end[:-1]).all():
        return kept
    free_from = None
    for index in np.argsort(end, kind="stable"):
        if not kept[index]:
            continue
        if free_from is not None and begin[index] < free_from:
            kept[index] = False
        else:
            free_from = end[index]
    return kept


def _numbered_once(flags: Numbers, group: Numbers, seq: Numbers) -> Bools:
    """Each place in the order of a group once; sends and receives are numbered apart."""
    apart = (flags & int(Flag.POINT_TO_POINT)).astype(np.int64)
    return _first_of_each((apart << 48) | (group.astype(np.int64) << 32) | seq.astype(np.int64))


def _first_of_each(numbers: Numbers) -> Bools:
    if (numbers[1:] > numbers[:-1]).all():
        return np.ones(len(numbers), np.bool_)
    kept = np.zeros(len(numbers), np.bool_)
    kept[np.unique(numbers, return_index=True)[1]] = True
    return kept
