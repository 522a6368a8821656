"""What lies across the phases of steps, as columns: parts of steps, pauses, named spans."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ddpdoctor.clocks import RankClock
from ddpdoctor.events import Flag, Kind, Part
from ddpdoctor.recordedcalls import UNKNOWN
from ddpdoctor.tracefile import RankTrace, Records

Ints = npt.NDArray[np.int64]

STEP_PARTS: Final = tuple(part for part in Part if part is not Part.GC_PAUSE)

# The recorder looks at these about once a second, or where steps are short in each so-many-th;
# a step in which it did has all since then.
SAMPLED: Final = frozenset({Part.THROTTLED, Part.IO, Part.IO_PRESSURE, Part.CPU_PRESSURE})


def parts_of_steps(trace: RankTrace, step_records: Records) -> dict[str, Ints]:
    """Nanoseconds of each part in each step, at most the step itself; UNKNOWN if not measured."""
    numbers = step_records["step"].astype(np.int64)
    length = (step_records["end_ns"] - step_records["begin_ns"]).astype(np.int64)
    records = trace.of_kind(Kind.PART)
    columns: dict[str, Ints] = {}
    for part in STEP_PARTS:
        name = f"{part.label}_ns"
        if part not in trace.parts:
            columns[name] = np.full(len(numbers), UNKNOWN)
        elif part is Part.RUN_QUEUE:
            columns[name] = _spread(step_records["nbytes"].astype(np.int64), length)
        elif part in SAMPLED:
            columns[name] = _spread(_by_step(records[records["code"] == part], numbers), length)
        else:
            own = records[records["code"] == part]
            columns[name] = np.minimum(_by_step(own, numbers), length)
    return columns


def _spread(amounts: Ints, length: Ints) -> Ints:
    """What was sampled in a step is of the steps before it, too: each takes what it has room for.

    Going back in time that is a queue: what comes in beyond a step's length is left for the one
    before.
    """
    left = np.cumsum((amounts - length)[::-1])
    queue = left - np.minimum(0, np.minimum.accumulate(left)) if len(left) else left
    before = np.concatenate([[0], queue[:-1]]) if len(left) else queue
    taken: Ints = (before + amounts[::-1] - queue)[::-1]
    return taken


def _by_step(records: Records, numbers: Ints) -> Ints:
    """The amount of the one record of each step, 0 where there is none."""
    amounts = np.zeros(len(numbers), np.int64)
    if not len(records):
        return amounts
    order = np.argsort(records["step"], kind="stable")
    step = records["step"][order].astype(np.int64)
    place = np.minimum(np.searchsorted(step, numbers), len(step) - 1)
    found = step[place] == numbers
    amounts[found] = records["nbytes"][order][place[found]].astype(np.int64)
    return amounts


def pause_columns(trace: RankTrace, clock: RankClock) -> dict[str, Ints]:
    """Long garbage collections, in the order of time."""
    records = trace.of_kind(Kind.PART)
    records = records[records["code"] == Part.GC_PAUSE]
    records = records[np.argsort(records["begin_ns"], kind="stable")]
    return {
        "rank": np.full(len(records), trace.info.rank),
        "step": records["step"].astype(np.int64),
        "generation": records["peer"].astype(np.int64),
        "begin_ns": clock.to_common(records["begin_ns"]),
        "end_ns": clock.to_common(records["end_ns"]),
    }


def named_columns(trace: RankTrace, clock: RankClock, latest_ns: int) -> dict[str, Ints]:
    """The user's spans in the order of time; one that is still open lasts as long as the record.

    Of a record for many spans, `spent_ns` is less than the stretch of time that they lie in.
    """
    records = trace.of_kind(Kind.NAMED)
    records = records[np.argsort(records["begin_ns"], kind="stable")]
    begin = clock.to_common(records["begin_ns"])
    end = np.where(records["end_ns"] > 0, clock.to_common(records["end_ns"]), latest_ns)
    end = np.maximum(begin, end)
    summed = (records["flags"] & int(Flag.SUMMED)) > 0
    spent = np.minimum(records["nbytes"].astype(np.int64), end - begin)
    return {
        "rank": np.full(len(records), trace.info.rank),
        "step": records["step"].astype(np.int64),
        "name": records["site"].astype(np.int64),
        "begin_ns": begin,
        "end_ns": end,
        "spent_ns": np.where(summed, spent, end - begin),
        "spans": np.where(summed, records["seq"].astype(np.int64), 1),
    }
