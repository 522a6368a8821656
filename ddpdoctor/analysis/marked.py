"""What is drawn above the phases of the timeline: the user's named spans and long collections."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.named import OTHER_NAMES
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

COLLECTION = "garbage collection"  # name 0
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Marks:
    """Stretches of the training threads, by rank and begin; `name` is an index into `names`."""

    names: tuple[str, ...]
    rank: Ints
    name: Ints
    begin_ms: Floats
    end_ms: Floats

    def within(self, begin_ms: float, end_ms: float) -> Marks:
        """What overlaps this stretch of time."""
        which: Bools = (self.end_ms >= begin_ms) & (self.begin_ms <= end_ms)
        return Marks(
            self.names, self.rank[which], self.name[which], self.begin_ms[which],
            self.end_ms[which],
        )  # fmt: skip


def build_marks(run: Run, tables: Tables, origin_ns: int) -> Marks:
    """Spans that were only added up have no place of their own, and are left out."""
    single = tables.named[tables.named["spans"] == 1]
    names, numbers = _common_names(run, single)
    pauses = tables.pauses.assign(number=0)
    columns = ["rank", "number", "begin_ns", "end_ns"]
    both = pd.concat([pauses[columns], single.assign(number=numbers)[columns]])
    both = both.sort_values(["rank", "begin_ns"], kind="stable")
    return Marks(
        names,
        both["rank"].to_numpy(np.int64),
        both["number"].to_numpy(np.int64),
        (both["begin_ns"].to_numpy(np.int64) - origin_ns) / _NS_PER_MS,
        (both["end_ns"].to_numpy(np.int64) - origin_ns) / _NS_PER_MS,
    )


def _common_names(run: Run, named: pd.DataFrame) -> tuple[tuple[str, ...], Ints]:
    """Each text once for all ranks, which number them on their own; and that of each row."""
    index = {COLLECTION: 0}
    numbers = np.zeros(len(named), np.int64)
    rank, name = named["rank"].to_numpy(np.int64), named["name"].to_numpy(np.int64)
    for trace in run.ranks:
        own = rank == trace.info.rank
        for number in np.unique(name[own]):
            text = trace.names.get(int(number), OTHER_NAMES)
            numbers[own & (name == number)] = index.setdefault(text, len(index))
    return tuple(index), numbers
