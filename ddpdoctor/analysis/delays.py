"""Step by step: when each rank arrived where the others waited for it, and what it did until then.

A rank's phases all end together, whoever was late: the others wait inside their backward. So
lateness is read from arrivals, and its origin from the rank's own time in each phase between the
last moment at which the ranks were together and its arrival, against the median of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.model import StepRange
from ddpdoctor.analysis.spent import rows_of, spent_until
from ddpdoctor.analysis.stepwise import LOCAL_PHASES, Stepwise, over_others, stepwise
from ddpdoctor.events import Phase
from ddpdoctor.matching import is_matched
from ddpdoctor.tables import Tables

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

HELD_EXPLAINS = 0.5  # of a lateness; with half of it spent held up, the rank's work is not slow
_NS_PER_MS = 1e6


class Holds(IntEnum):
    """What kept the last rank of a step from arriving earlier."""

    WORK = 0  # what it did, or nothing that was measured
    PAUSE = 1  # garbage collection
    QUEUE = 2  # it was ready to run and had no CPU


@dataclass(frozen=True)
class Arrivals:
    """All collectives of all ranks in the counted steps."""

    step: Ints  # (collective,) index into the steps
    ns: Ints  # (rank, collective)


@dataclass(frozen=True)
class Delays:
    """Of each step the collective with the longest delay caused by one rank. Milliseconds.

    Rows and steps are those of `steps`. `arrival_ms` counts from the first arrival there.
    """

    steps: Stepwise
    every: Arrivals
    last: Ints  # (step,) the row that arrived last
    caused_ms: Floats  # (step,) last - second-last arrival
    arrival_ms: Floats  # (rank, step)
    own_ms: Floats  # (phase, rank, step) since the ranks were last together
    paused_ms: Floats  # (rank, step) collecting garbage since then

    @cached_property
    def lateness_ms(self) -> Floats:
        """Own arrival less the median of the others', (rank, step)."""
        return over_others(self.arrival_ms)

    @cached_property
    def more_ms(self) -> Floats:
        """Own time in each phase less the median of the others', (phase, rank, step)."""
        return np.stack([over_others(own) for own in self.own_ms])

    @cached_property
    def holds(self) -> Ints:
        """A `Holds` for each step, of its last rank."""
        at = (self.last, np.arange(len(self.last)))
        enough = HELD_EXPLAINS * np.maximum(self.lateness_ms[at], 0.0)
        paused, queued = over_others(self.paused_ms)[at], over_others(self.steps.queued_ms)[at]
        held = np.full(len(self.last), Holds.WORK, np.int64)
        held[(queued >= enough) & (queued > 0)] = Holds.QUEUE
        held[(paused >= enough) & (paused > 0)] = Holds.PAUSE
        return held

    def caused_by(self, row: int) -> Floats:
        """(step,) what the job waited for this rank's work, 0 where something held it up."""
        own = (self.last == row) & (self.holds == Holds.WORK)
        return np.where(own, self.caused_ms, 0.0)

    def gain_ms(self, held_ms: Floats) -> float:
        """Mean milliseconds by which a step would be shorter if no rank were held up so long."""
        if not self.arrival_ms.size:
            return 0.0
        held = np.minimum(np.nan_to_num(held_ms), self.own_ms.sum(axis=0))
        after = (self.arrival_ms - held).max(axis=0)
        return float((self.arrival_ms.max(axis=0) - after).mean())


def delays_in(tables: Tables, counted: StepRange) -> Delays | None:
    """Of a range of steps, as `delays_of`."""
    return delays_of(tables, stepwise(tables, counted))


def delays_of(tables: Tables, steps: Stepwise) -> Delays | None:
    """None where there is one rank, or no collective that all of them reached."""
    if len(steps.ranks) < 2:
        return None
    every = _arrivals(tables, steps)
    reached, chosen = _longest(every)
    if not len(reached):
        return None
    if len(reached) < len(steps.syncs):
        steps = _only(steps, reached)
        place = np.searchsorted(reached, every.step)
        every = Arrivals(place, every.ns)
    arrivals = every.ns[:, chosen]
    ordered = np.sort(arrivals, axis=0)
    together = [_together_before(tables, int(r), steps.syncs) for r in steps.ranks]
    rows = list(zip(steps.ranks.tolist(), together, arrivals, strict=True))
    own = np.stack([_own_times(tables, *row) for row in rows], axis=1)
    return Delays(
        steps,
        every,
        len(arrivals) - 1 - arrivals[::-1].argmax(axis=0),
        (ordered[-1] - ordered[-2]) / _NS_PER_MS,
        (arrivals - ordered[0]) / _NS_PER_MS,
        own / _NS_PER_MS,
        np.stack([_pauses(tables, *row) for row in rows]) / _NS_PER_MS,
    )


def _only(steps: Stepwise, which: Ints) -> Stepwise:
    return Stepwise(
        steps.ranks, steps.syncs[which], steps.begin_ms[which], steps.step_ms[:, which],
        steps.own_ms[:, :, which], steps.transfer_ms[:, which], steps.queued_ms[:, which],
        steps.throttled_ms[:, which], steps.paused_ms[:, which],
    )  # fmt: skip


def _arrivals(tables: Tables, steps: Stepwise) -> Arrivals:
    """Only collectives to which every rank came that recorded steps, in steps of `steps`."""
    table = tables.collectives
    table = table[is_matched(table["flags"], table["group"]) & table["rank"].isin(steps.ranks)]
    table = table.drop_duplicates(["rank", "group", "seq"])
    present = table.groupby(["group", "seq"])["rank"].transform("size").to_numpy()
    table = table[present == len(steps.ranks)].sort_values(["group", "seq", "rank"])
    shape = (-1, len(steps.ranks))
    ns = table["arrival_ns"].to_numpy(np.int64).reshape(shape).T
    first_step = table["step"].to_numpy(np.int64).reshape(shape)[:, 0]
    index = _index_of_step(tables, steps, first_step)
    order = np.lexsort((ns[0], index))
    order = order[index[order] >= 0]
    return Arrivals(index[order], ns[:, order])


def _index_of_step(tables: Tables, steps: Stepwise, numbers: Ints) -> Ints:
    """Place among the counted steps of these step numbers of the first rank; -1 for others."""
    own = rows_of(tables.steps, int(steps.ranks[0])).drop_duplicates("step")
    sync = own.set_index("step")["sync"].reindex(numbers).fillna(-1).to_numpy(np.int64)
    if not len(steps.syncs):
        return np.full(len(numbers), -1)
    place = np.minimum(np.searchsorted(steps.syncs, sync), len(steps.syncs) - 1)
    return np.where(steps.syncs[place] == sync, place, -1)


def _longest(every: Arrivals) -> tuple[Ints, Ints]:
    """The steps with a collective, and of each the one with the longest delay; first of equals."""
    if not every.ns.shape[1]:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ordered = np.sort(every.ns, axis=0)
    caused = ordered[-1] - ordered[-2]
    order = np.lexsort((ordered[0], -caused, every.step))
    reached, first = np.unique(every.step[order], return_index=True)
    return reached, order[first]


def _own_times(tables: Tables, rank: int, together: Ints, arrival: Ints) -> Floats:
    """Nanoseconds in each local phase from the last sync point to the arrival; (phases, steps)."""
    begin, end, phase = _segments(tables, rank)
    rows = [
        spent_until(begin, end, phase == wanted, arrival)
        - spent_until(begin, end, phase == wanted, together)
        for wanted in LOCAL_PHASES
    ]
    return np.array(rows, np.float64)


def _pauses(tables: Tables, rank: int, together: Ints, arrival: Ints) -> Floats:
    own = rows_of(tables.pauses, rank)
    begin, end = own["begin_ns"].to_numpy(np.int64), own["end_ns"].to_numpy(np.int64)
    if not len(begin):
        return np.zeros(len(arrival))
    every = np.ones(len(begin), np.bool_)
    until = spent_until(begin, end, every, arrival) - spent_until(begin, end, every, together)
    return until.astype(np.float64)


def _segments(tables: Tables, rank: int) -> tuple[Ints, Ints, Ints]:
    own = rows_of(tables.segments, rank)
    begin, end = own["begin_ns"].to_numpy(np.int64), own["end_ns"].to_numpy(np.int64)
    return begin, end, own["phase"].to_numpy(np.int64)


def _together_before(tables: Tables, rank: int, syncs: Ints) -> Ints:
    """The last moment before each step at which the rank had waited for the others.

    Where the step before was not kept in detail, the step's own begin stands for it.
    """
    _, end, phase = _segments(tables, rank)
    sync_points = end[phase == Phase.TRANSFER]
    own = rows_of(tables.steps, rank).drop_duplicates("sync")
    follows = own["begin_ns"].to_numpy(np.int64)[1:] == own["end_ns"].to_numpy(np.int64)[:-1]
    own = own.assign(follows=np.concatenate([[False], follows])[: len(own)]).set_index("sync")
    begins = own["begin_ns"].reindex(syncs).to_numpy(np.int64)
    if not len(sync_points):
        return begins
    index = np.searchsorted(sync_points, begins, "right") - 1
    is_near = own["follows"].reindex(syncs).to_numpy(np.bool_) & (index >= 0)
    return np.where(is_near, sync_points[np.maximum(index, 0)], begins)
