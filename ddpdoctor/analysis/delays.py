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
from ddpdoctor.analysis.numbered import CallsOfRanks
from ddpdoctor.analysis.spent import ByRank, Moments, spent_before, spent_until
from ddpdoctor.analysis.stepwise import LOCAL_PHASES, Stepwise, over_others, stepwise
from ddpdoctor.events import Phase
from ddpdoctor.tables import Tables

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

HELD_EXPLAINS = 0.5  # of a lateness; with half of it spent held up, the rank's work is not slow
_NEVER = -(2**62)
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
    first, second, last = _extremes(arrivals)
    segments = ByRank(tables.segments, "begin_ns", "end_ns", "phase")
    own_steps = ByRank(tables.steps, "sync", "begin_ns", "end_ns")
    pauses = ByRank(tables.pauses, "begin_ns", "end_ns")
    own = np.empty((len(LOCAL_PHASES), *arrivals.shape))
    paused = np.empty(arrivals.shape)
    for row, rank in enumerate(steps.ranks.tolist()):
        stretches = segments.of(rank)
        together = _together_before(stretches, own_steps.of(rank), steps.syncs)
        own[:, row] = _own_times(stretches, together, arrivals[row])
        paused[row] = _paused(pauses.of(rank), together, arrivals[row])
    return Delays(
        steps,
        every,
        len(arrivals) - 1 - arrivals[::-1].argmax(axis=0),
        (last - second) / _NS_PER_MS,
        (arrivals - first) / _NS_PER_MS,
        own / _NS_PER_MS,
        paused / _NS_PER_MS,
    )


def _only(steps: Stepwise, which: Ints) -> Stepwise:
    return Stepwise(
        steps.ranks, steps.syncs[which], steps.begin_ms[which], steps.step_ms[:, which],
        steps.own_ms[:, :, which], steps.transfer_ms[:, which], steps.queued_ms[:, which],
        steps.throttled_ms[:, which], steps.paused_ms[:, which],
    )  # fmt: skip


def _arrivals(tables: Tables, steps: Stepwise) -> Arrivals:
    """Only collectives to which every rank came that recorded steps, in steps of `steps`."""
    calls = CallsOfRanks(tables, "step", "arrival_ns")
    first, (step, arrival) = calls.of(int(steps.ranks[0]))
    index = _index_of_step(tables, steps, step[first.rows])
    order = np.lexsort((arrival[first.rows], index))
    order = order[index[order] >= 0]
    wanted, index = first.keys[order], index[order]
    ns = np.empty((len(steps.ranks), len(wanted)), np.int64)
    present = np.ones(len(wanted), np.bool_)
    own, rows = first, first.rows[order]
    for row, rank in enumerate(steps.ranks.tolist()):
        before, (own, (_, arrival)) = own, calls.of(rank)
        if own is not before:
            rows, found = own.find(wanted)
            present &= found
        ns[row] = arrival[rows] if len(arrival) else 0
    return Arrivals(index, ns) if present.all() else Arrivals(index[present], ns[:, present])


def _index_of_step(tables: Tables, steps: Stepwise, numbers: Ints) -> Ints:
    """Place among the counted steps of these step numbers of the first rank; -1 for others."""
    (step, sync) = ByRank(tables.steps, "step", "sync").of(int(steps.ranks[0]))
    known, first = np.unique(step, return_index=True)
    if not len(steps.syncs) or not len(known):
        return np.full(len(numbers), -1)
    place = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    of_call = np.where(known[place] == numbers, sync[first][place], -1)
    place = np.minimum(np.searchsorted(steps.syncs, of_call), len(steps.syncs) - 1)
    return np.where(steps.syncs[place] == of_call, place, -1)


def _longest(every: Arrivals) -> tuple[Ints, Ints]:
    """The steps with a collective, and of each the one with the longest delay; first of equals."""
    if not every.ns.shape[1]:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    earliest, second, last = _extremes(every.ns)
    order = np.lexsort((earliest, second - last, every.step))
    reached, first = np.unique(every.step[order], return_index=True)
    return reached, order[first]


def _extremes(ns: Ints) -> tuple[Ints, Ints, Ints]:
    """The first, second-last and last arrival of each collective, of (rank, collective)."""
    first, second, last = ns[0].copy(), np.full(ns.shape[1], _NEVER), ns[0].copy()
    for own in ns[1:]:
        np.minimum(first, own, out=first)
        np.maximum(second, np.minimum(last, own), out=second)
        np.maximum(last, own, out=last)
    return first, second, last


def _own_times(segments: list[Ints], together: Ints, arrival: Ints) -> Ints:
    """Nanoseconds in each local phase from the last sync point to the arrival; (phases, steps)."""
    begin, end, phase = segments
    if not len(begin):
        return np.zeros((len(LOCAL_PHASES), len(arrival)), np.int64)
    until, since = Moments.of(begin, end, arrival), Moments.of(begin, end, together)
    rows = []
    for wanted in LOCAL_PHASES:
        inside = phase == wanted
        before = spent_before(begin, end, inside)
        rows.append(until.spent(before, inside) - since.spent(before, inside))
    return np.array(rows)


def _paused(pauses: list[Ints], together: Ints, arrival: Ints) -> Ints:
    begin, end = pauses
    if not len(begin):
        return np.zeros(len(arrival), np.int64)
    every = np.ones(len(begin), np.bool_)
    return spent_until(begin, end, every, arrival) - spent_until(begin, end, every, together)


def _together_before(segments: list[Ints], steps: list[Ints], syncs: Ints) -> Ints:
    """The last moment before each step at which the rank had waited for the others.

    Where the step before was not kept in detail, the step's own begin stands for it.
    """
    _, end, phase = segments
    sync_points = end[phase == Phase.TRANSFER]
    sync, begin_ns, end_ns = steps
    known, first = np.unique(sync, return_index=True)
    kept = np.sort(first)  # a step may be there twice
    begins, ends = begin_ns[kept], end_ns[kept]
    follows = np.concatenate([[False], begins[1:] == ends[:-1]])
    place = np.searchsorted(kept, first[np.searchsorted(known, syncs)])
    begins = begins[place]
    if not len(sync_points):
        return begins
    index = np.searchsorted(sync_points, begins, "right") - 1
    is_near = follows[place] & (index >= 0)
    return np.where(is_near, sync_points[np.maximum(index, 0)], begins)
