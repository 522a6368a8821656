"""Who arrives last at the collectives of each step, and which phase the lateness comes from.

A rank's phases all end together, whoever was late: the others wait inside their backward. So
lateness is read from arrivals, and its origin from the rank's own time in each phase between the
last moment at which the ranks were together and its arrival, against the median of the others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.model import LateArrivals, PhaseExcess, StepRange
from ddpdoctor.events import HotLine, Phase, Site
from ddpdoctor.findings import Location
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LOCAL_PHASES = (
    Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.BETWEEN,
)  # fmt: skip
_NS_PER_MS = 1e6


def late_arrivals(run: Run, tables: Tables, steps: StepRange) -> dict[int, LateArrivals]:
    """Per rank; empty where a job has one rank or no collective that all of them reached."""
    deciding = _deciding_collectives(tables, steps)
    ranks = sorted(deciding.arrival_ns)
    if len(ranks) < 2 or not len(deciding.sync):
        return {}
    local = {rank: _local_times(tables, rank, deciding) for rank in ranks}
    queued = {rank: _run_queue(tables, rank, deciding.sync) for rank in ranks}
    hot = {trace.info.rank: trace.hot_lines for trace in run.ranks}
    return {rank: _of_rank(rank, deciding, local, queued, hot) for rank in ranks}


@dataclass(frozen=True)
class _Deciding:
    """For each counted step the collective with the longest caused delay, and its arrivals."""

    sync: Ints
    last_rank: Ints
    caused_ns: Ints
    arrival_ns: dict[int, Ints]  # by rank, one a step


def _deciding_collectives(tables: Tables, steps: StepRange) -> _Deciding:
    """Only collectives of all ranks that recorded steps count, in steps that all of them recorded.

    Ties go to the earliest of the step.
    """
    ranks = sorted(tables.steps["rank"].unique())
    table = tables.collectives[tables.collectives["complete"]]
    table = table[table["rank"].isin(ranks)]
    sync_of_step = tables.steps.set_index(["rank", "step"])["sync"]
    reference = table[(table["rank"] == ranks[0]) & (table["step"] >= 0)]
    keys = pd.MultiIndex.from_arrays([reference["rank"], reference["step"]])
    reference = reference.assign(step_sync=sync_of_step.reindex(keys).to_numpy())
    reference = reference[reference["step_sync"].isin(_counted_syncs(tables.steps, steps))]
    sizes = table.groupby(["group", "seq"])["rank"].nunique()
    whole = pd.MultiIndex.from_frame(reference[["group", "seq"]])
    reference = reference[sizes.reindex(whole).to_numpy() == len(ranks)]
    order = reference.sort_values(["caused_ns", "arrival_ns"], ascending=[False, True])
    chosen = order.drop_duplicates("step_sync").sort_values("step_sync")
    wanted = pd.MultiIndex.from_frame(chosen[["group", "seq"]])
    arrival = {int(rank): _arrivals_of(table[table["rank"] == rank], wanted) for rank in ranks}
    return _Deciding(
        chosen["step_sync"].to_numpy(np.int64),
        chosen["last_rank"].to_numpy(np.int64),
        chosen["caused_ns"].to_numpy(np.int64),
        arrival,
    )


def _counted_syncs(steps: pd.DataFrame, counted: StepRange) -> Ints:
    """The steps that every rank recorded, within those that are counted."""
    seen = steps.groupby("sync")["rank"].nunique()
    common = seen.index[seen == steps["rank"].nunique()].to_numpy(np.int64)
    return common[(common >= counted.first_sync) & (common <= counted.last_sync)]


def _arrivals_of(own: pd.DataFrame, wanted: pd.MultiIndex) -> Ints:
    arrivals = own.drop_duplicates(["group", "seq"]).set_index(["group", "seq"])["arrival_ns"]
    return arrivals.reindex(wanted).to_numpy(np.int64)


def _local_times(tables: Tables, rank: int, deciding: _Deciding) -> Floats:
    """Nanoseconds in each local phase from the last sync point to the arrival; (phases, steps)."""
    segments = tables.segments[tables.segments["rank"] == rank]
    begin = segments["begin_ns"].to_numpy(np.int64)
    end = segments["end_ns"].to_numpy(np.int64)
    phase = segments["phase"].to_numpy(np.int64)
    together = _together_before(tables, rank, deciding.sync, end[phase == Phase.TRANSFER])
    rows = [
        _spent_until(begin, end, phase == wanted, deciding.arrival_ns[rank])
        - _spent_until(begin, end, phase == wanted, together)
        for wanted in LOCAL_PHASES
    ]
    return np.array(rows, np.float64)


def _together_before(tables: Tables, rank: int, syncs: Ints, sync_points: Ints) -> Ints:
    """The last moment before each step at which the rank had waited for the others.

    Where the step before was not kept in detail, the step's own begin stands for it.
    """
    own = tables.steps[tables.steps["rank"] == rank].drop_duplicates("sync")
    follows = own["begin_ns"].to_numpy(np.int64)[1:] == own["end_ns"].to_numpy(np.int64)[:-1]
    own = own.assign(follows=np.concatenate([[False], follows])[: len(own)]).set_index("sync")
    begins = own["begin_ns"].reindex(syncs).to_numpy(np.int64)
    if not len(sync_points):
        return begins
    index = np.searchsorted(sync_points, begins, "right") - 1
    is_near = own["follows"].reindex(syncs).to_numpy(np.bool_) & (index >= 0)
    return np.where(is_near, sync_points[np.maximum(index, 0)], begins)


def _run_queue(tables: Tables, rank: int, syncs: Ints) -> Floats:
    """Nanoseconds in each step for which the rank waited for a CPU."""
    steps = tables.steps[tables.steps["rank"] == rank].drop_duplicates("sync").set_index("sync")
    return steps["run_queue_ns"].reindex(syncs).to_numpy(np.float64)


def _spent_until(begin: Ints, end: Ints, inside: npt.NDArray[np.bool_], times: Ints) -> Ints:
    """Time in the marked segments up to each moment; the segments tile time."""
    length = np.where(inside, end - begin, 0)
    before = np.concatenate([[0], np.cumsum(length)])
    index = np.clip(np.searchsorted(begin, times, "right") - 1, 0, len(begin) - 1)
    partial = np.clip(times - begin[index], 0, end[index] - begin[index])
    return before[index] + np.where(inside[index], partial, 0)


def _of_rank(
    rank: int,
    deciding: _Deciding,
    local: dict[int, Floats],
    queued: dict[int, Floats],
    hot: dict[int, tuple[HotLine, ...]],
) -> LateArrivals:
    was_last = deciding.last_rank == rank
    caused = np.where(was_last, deciding.caused_ns, 0)
    others = [other for other in local if other != rank]
    arrivals = np.median([deciding.arrival_ns[other] for other in others], axis=0)
    lateness = (deciding.arrival_ns[rank] - arrivals)[was_last]
    excess = (local[rank] - np.median([local[other] for other in others], axis=0))[:, was_last]
    more_queued = (queued[rank] - np.median([queued[o] for o in others], axis=0))[was_last]
    late_ms = float(lateness.mean()) / _NS_PER_MS if was_last.any() else 0.0
    phases = [
        _phase_excess(phase, float(row.mean()) / _NS_PER_MS if was_last.any() else 0.0, late_ms,
                      rank, hot)
        for phase, row in zip(LOCAL_PHASES, excess, strict=True)
    ]  # fmt: skip
    return LateArrivals(
        float(was_last.mean()),
        float(caused.mean()) / _NS_PER_MS,
        float(np.median(caused)) / _NS_PER_MS,
        late_ms,
        max(0.0, float(more_queued.mean())) / _NS_PER_MS if was_last.any() else 0.0,
        tuple(sorted(phases, key=lambda phase: -phase.excess_ms)),
    )


def _phase_excess(
    phase: Phase, excess_ms: float, late_ms: float, rank: int, hot: dict[int, tuple[HotLine, ...]]
) -> PhaseExcess:
    own = _samples(hot.get(rank, ()), phase)
    others = [_samples(lines, phase) for other, lines in hot.items() if other != rank]
    more: Counter[Site] = Counter()
    for site, samples in own.items():
        more[site] = samples - int(np.median([other[site] for other in others] or [0]))
    total = own.total() - int(np.median([other.total() for other in others] or [0]))
    top = more.most_common(1)
    where = None
    if top and top[0][1] > 0:
        site = top[0][0]
        where = Location(rank, site.file, site.line, site.function)
    coverage = excess_ms / late_ms if late_ms > 0 else 0.0
    return PhaseExcess(phase, excess_ms, coverage, max(0, total), where)


def _samples(lines: tuple[HotLine, ...], phase: Phase) -> Counter[Site]:
    counts: Counter[Site] = Counter()
    for line in lines:
        if line.phase is phase:
            counts[line.site] += line.samples
    return counts
