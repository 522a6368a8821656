"""The user's named spans: what each name takes of a step, by rank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.model import NamedTime
from ddpdoctor.analysis.spent import rows_of
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run

Ints = npt.NDArray[np.int64]

OTHER_NAMES = "(other names)"  # those after the first MOST_NAMES of a rank
_NS_PER_MS = 1e6


def named_times(run: Run, tables: Tables, counted: pd.DataFrame) -> tuple[NamedTime, ...]:
    """Mean milliseconds a counted step, largest first. A span may cover many steps, or parts."""
    by_name: dict[str, dict[int, float]] = {}
    for trace in run.ranks:
        rank = trace.info.rank
        own = rows_of(tables.named, rank)
        if not len(own):
            continue
        steps = rows_of(counted, rank).sort_values("begin_ns")
        if not len(steps):
            continue
        spent = pd.Series(_within_steps(own, steps)).groupby(own["name"].to_numpy()).sum()
        for number, ns in spent.items():
            times = by_name.setdefault(trace.names.get(int(str(number)), OTHER_NAMES), {})
            times[rank] = times.get(rank, 0.0) + float(ns) / len(steps) / _NS_PER_MS
    named = [NamedTime(name, times) for name, times in by_name.items()]
    return tuple(sorted(named, key=lambda each: (-max(each.ms_by_rank.values()), each.name)))


def _within_steps(named: pd.DataFrame, steps: pd.DataFrame) -> Ints:
    """Nanoseconds of each span within these steps. Spans that were added up belong to their own."""
    begin = steps["begin_ns"].to_numpy(np.int64)
    end = steps["end_ns"].to_numpy(np.int64)
    before = np.concatenate([[0], np.cumsum(end - begin)])

    def covered(times: Ints) -> Ints:
        """Time of the steps before each moment; steps do not overlap."""
        index = np.searchsorted(begin, times, "right")
        last = np.maximum(index - 1, 0)
        inside = np.clip(times - begin[last], 0, end[last] - begin[last])
        return np.asarray(np.where(index > 0, before[last] + inside, 0))

    whole = covered(named["end_ns"].to_numpy(np.int64)) - covered(
        named["begin_ns"].to_numpy(np.int64)
    )
    summed = named["spans"].to_numpy(np.int64) > 1
    in_steps = np.isin(named["step"].to_numpy(np.int64), steps["step"].to_numpy(np.int64))
    return np.where(summed, named["spent_ns"].to_numpy(np.int64) * in_steps, whole)
