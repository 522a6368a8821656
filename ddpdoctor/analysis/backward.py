"""Where in its backward a rank falls behind: after which parameter's gradient, or in which bucket.

Where the recorder looked at a backward, it kept when each gradient was ready; the stretch
between two of them that is longer than on the other ranks is the place. Without such a look among
the counted steps, the buckets tell: the first at which the rank is late.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.numbered import CallsOfRanks
from ddpdoctor.analysis.spent import ByRank
from ddpdoctor.events import Flag
from ddpdoctor.modelevents import GradientTimes
from ddpdoctor.tracefile import RankTrace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

COVERS = 0.8  # of what the rank loses in its backward lies in one stretch; else none is named
_US_PER_MS = 1e3
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class BackwardPlace:
    """A stretch of a backward. Names are None where it is known by its bucket only."""

    late_ms: float
    after: str | None = None  # its gradient came before; None: the stretch is the first
    before: str | None = None
    bucket: int | None = None

    def said(self) -> str:
        if self.before is not None:
            begin = f"after the gradient of {self.after}" if self.after else "at its beginning"
            return f"{begin}, before that of {self.before}"
        return f"before bucket {self.bucket} is ready"


def place_in_backward(run: Analysis, rank: int) -> BackwardPlace | None:
    """None where the record does not tell, or no stretch covers most of the lateness."""
    return _by_gradients(run, rank) or _by_buckets(run, rank)


def _by_gradients(run: Analysis, rank: int) -> BackwardPlace | None:
    """Of all looks at the counted steps, those of the same order on all ranks, the median."""
    traces = {trace.info.rank: trace for trace in run.run.ranks}
    looks = [_looks(trace, run) for trace in traces.values()]
    common = set.intersection(*(set(own) for own in looks)) if looks else set()
    own = _looks(traces[rank], run)
    stretches, order = [], None
    for key in sorted(common):
        if any(look[key].places != own[key].places for look in looks):
            continue
        if order is not None and own[key].places != order:
            continue
        order = own[key].places
        others = [_gaps(_looks(t, run)[key]) for r, t in traces.items() if r != rank]
        stretches.append(_gaps(own[key]) - np.median(others, axis=0))
    if order is None or len(traces) < 2:
        return None
    more = np.median(stretches, axis=0)
    worst = int(more.argmax())
    late_ms = float(more[worst])
    if late_ms <= 0 or late_ms < COVERS * float(more[more > 0].sum()):
        return None
    names = _names(traces[rank], common)
    before = names.get(order[worst])
    after = names.get(order[worst - 1]) if worst else None
    return BackwardPlace(late_ms, after, before) if before is not None else None


def _looks(trace: RankTrace, run: Analysis) -> dict[tuple[int, int], GradientTimes]:
    """By model and its reduction; of counted steps, and with gradients."""
    counted = range(run.steps.first_sync, run.steps.last_sync + 1)
    found = trace.model.gradient_times
    return {key: each for key, each in found.items() if each.sync in counted and each.places}


def _gaps(times: GradientTimes) -> Floats:
    return np.diff(np.array(times.ready_us, np.float64), prepend=0.0) / _US_PER_MS


def _names(trace: RankTrace, keys: set[tuple[int, int]]) -> dict[int, str]:
    """Of the one model that was looked at; none where there are several."""
    models = {model for model, _ in keys}
    if len(models) != 1:
        return {}
    info = trace.model.models.get(models.pop())
    return {place: told.name for place, told in enumerate(info.parameters)} if info else {}


def _by_buckets(run: Analysis, rank: int) -> BackwardPlace | None:
    calls = CallsOfRanks(run.tables, "step", "flags", "bucket", "arrival_ns")
    numbered, (step, flags, bucket, arrival) = calls.of(rank)
    complete = run.tables.calls.of_rank(rank)["complete"].to_numpy()
    known = _is_bucket(flags, bucket) & complete & _is_counted(run, rank, step)
    kept = known[numbered.rows]
    keys, rows = numbered.keys[kept], numbered.rows[kept]
    others = _usual_arrival(run, calls, rank, keys)
    late = pd.Series((arrival[rows] - others) / _NS_PER_MS)
    by_bucket = late.groupby(bucket[rows]).median()
    if len(by_bucket) < 2:
        return None
    more = np.diff(by_bucket.to_numpy(np.float64), prepend=0.0)
    worst = int(more.argmax())
    if more[worst] <= 0 or more[worst] < COVERS * float(more[more > 0].sum()):
        return None
    return BackwardPlace(float(more[worst]), bucket=int(by_bucket.index[worst]))


def _is_bucket(flags: Ints, bucket: Ints) -> Bools:
    return np.asarray(((flags & int(Flag.BUCKET)) > 0) & (bucket >= 0))


def _is_counted(run: Analysis, rank: int, step: Ints) -> Bools:
    number, sync = ByRank(run.tables.steps, "step", "sync").of(rank)
    counted = (sync >= run.steps.first_sync) & (sync <= run.steps.last_sync)
    return np.isin(step, number[counted])


def _usual_arrival(run: Analysis, calls: CallsOfRanks, rank: int, keys: Ints) -> Floats:
    """The median of the other ranks at each of these calls; NaN where there is none."""
    arrivals = []
    for other in run.tables.steps["rank"].unique().tolist():
        if other != rank:
            numbered, (*_, flags, bucket, arrival) = calls.of(other)
            rows, found = numbered.find(keys)
            found &= _is_bucket(flags[rows], bucket[rows]) if len(flags) else False
            if found.any():
                arrivals.append(np.where(found, arrival[rows], np.nan))
    if not arrivals:
        return np.full(len(keys), np.nan)
    ordered = np.sort(np.stack(arrivals, axis=1), axis=1)  # NaN last
    count = np.isfinite(ordered).sum(axis=1)
    at = np.arange(len(keys))
    middle = ordered[at, np.maximum(0, (count - 1) // 2)] / 2 + ordered[at, count // 2] / 2
    return np.where(count > 0, middle, np.nan)
