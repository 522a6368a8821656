"""The user's named spans: what each name takes of a step, by rank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.model import NamedTime, StepRange
from ddpdoctor.analysis.spent import ByRank
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

OTHER_NAMES = "(other names)"  # those after the first MOST_NAMES of a rank
_NS_PER_MS = 1e6


def named_times(run: Run, tables: Tables, counted: StepRange) -> tuple[NamedTime, ...]:
    """Mean milliseconds a counted step, largest first. A span may cover many steps, or parts."""
    by_name: dict[str, dict[int, float]] = {}
    if not len(tables.named):
        return ()
    spans = ByRank(tables.named, "step", "name", "begin_ns", "end_ns", "spent_ns", "spans")
    is_counted = tables.steps["sync"].between(counted.first_sync, counted.last_sync)
    columns = ["rank", "step", "begin_ns", "end_ns"]
    steps = ByRank(tables.steps[columns][is_counted], *columns[1:])
    for trace in run.ranks:
        rank = trace.info.rank
        step, name, *times = spans.of(rank)
        own_steps, *edges = steps.of(rank)
        if not len(step) or not len(own_steps):
            continue
        numbers, which = np.unique(name, return_inverse=True)
        within = _within_steps(times, np.isin(step, own_steps), edges)
        spent = np.bincount(which, weights=within) / len(own_steps) / _NS_PER_MS
        for number, ms in zip(numbers.tolist(), spent.tolist(), strict=True):
            of_name = by_name.setdefault(trace.names.get(number, OTHER_NAMES), {})
            of_name[rank] = of_name.get(rank, 0.0) + ms
    named = [NamedTime(name, times) for name, times in by_name.items()]
    return tuple(sorted(named, key=lambda each: (-max(each.ms_by_rank.values()), each.name)))


def _within_steps(times: list[Ints], in_steps: Bools, edges: list[Ints]) -> Ints:
    """Nanoseconds of each span within these steps. Spans that were added up belong to their own."""
    begin, end, spent, spans = times
    begins, ends = edges
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], ends[order]
    before = np.concatenate([[0], np.cumsum(ends - begins)])

    def covered(times: Ints) -> Ints:
        """Time of the steps before each moment; steps do not overlap."""
        index = np.searchsorted(begins, times, "right")
        last = np.maximum(index - 1, 0)
        inside = np.clip(times - begins[last], 0, ends[last] - begins[last])
        return np.asarray(np.where(index > 0, before[last] + inside, 0))

    return np.where(spans > 1, spent * in_steps, covered(end) - covered(begin))
