"""Why a job waits, each cause once: which of those that fit is the one to name.

What holds a rank up comes first: a collection, a quota, no CPU. The steps it explains are no
longer taken for slow work. Of slow work a whole host goes before its ranks, sizes of batches
before ranks that are late in turn, a rise and a regular interval before "always late".
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.arrivals import excesses, shares_of
from ddpdoctor.analysis.delays import Delays, delays_of
from ddpdoctor.analysis.held import held_up
from ddpdoctor.analysis.hosts import slow_hosts
from ddpdoctor.analysis.hotlines import HotLines
from ddpdoctor.analysis.model import StepRange
from ddpdoctor.analysis.shapes import Rise, Stalls, period, rise, stalls
from ddpdoctor.analysis.stepwise import Stepwise, stepwise
from ddpdoctor.analysis.together import of_all_ranks
from ddpdoctor.analysis.waitjob import SHARE_LEAST, STEPS_NEEDED, Job, is_often
from ddpdoctor.analysis.waitmodel import ORIGIN_COVERS, Lateness, Waiting, WaitKind
from ddpdoctor.analysis.worksizes import WorkFit, follows, size_ratio, work_sizes
from ddpdoctor.events import Phase
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FOLLOWS_R = 0.9  # ByteDance's limit for lateness that comes from sequence lengths
RISE_CLAIMS = 0.5  # of what a rank costs; with less, it is late anyhow
MOST_OF_IT = 0.8  # of the irregular delays; else other ranks have them as well
_ROUNDING = 1e-9
TURNS_SHARE = 0.20  # of a step; less is what ranks vary by on any host that is in use


def causes_of_waiting(
    run: Run, tables: Tables, steps: Stepwise, delays: Delays | None, step_ms: float
) -> tuple[Waiting, ...]:
    """The dearest first. Needs STEPS_NEEDED steps; `delays` where arrivals can be compared.

    `step_ms` is the step that is said beside what each costs.
    """
    if len(steps.syncs) < STEPS_NEEDED:
        return ()
    found = held_up(run, tables, steps, delays)
    if delays is not None and len(delays.last) >= STEPS_NEEDED:
        found += late(Job(run, delays.steps, delays, HotLines.of(run)))
    sizes = work_sizes(run, steps.ranks, steps.syncs)
    found += of_all_ranks(run, steps, sizes, drifts=any(w.rise is not None for w in found))
    found = [replace(waiting, step_ms=step_ms) for waiting in found]
    return tuple(sorted(found, key=lambda waiting: (-waiting.lost_ms, waiting.ranks)))


def waiting_in(run: Run, tables: Tables, counted: StepRange, step_ms: float) -> tuple[Waiting, ...]:
    """Of a range of steps, as if no other had been recorded."""
    steps = stepwise(tables, counted)
    delays = delays_of(tables, steps) if tables.clock.comparable else None
    return causes_of_waiting(run, tables, steps, delays, step_ms)


def late(job: Job) -> list[Waiting]:
    """Causes in what ranks do, or in their hosts."""
    found = slow_hosts(job)
    claimed = {rank for waiting in found for rank in waiting.ranks}
    uneven = _uneven(job) if not found else None
    if uneven is not None:
        return [uneven]
    irregular: dict[int, Stalls] = {}
    for row in _rows_that_cost(job):
        if int(job.steps.ranks[row]) not in claimed:
            found += _of_rank(job, row, irregular)
    return found or _irregular(job, irregular)


def _rows_that_cost(job: Job) -> list[int]:
    """Others cost too little for whatever it is; of many ranks that is nearly all."""
    caused = np.where(job.works, job.delays.caused_ms, 0.0)
    lost = np.bincount(job.delays.last, weights=caused, minlength=len(job.steps.ranks))
    least = SHARE_LEAST * job.step_ms * (1 - _ROUNDING)
    return [int(row) for row in np.flatnonzero(lost / len(caused) >= least)]


def _is_always_late(job: Job, row: int, caused: Floats) -> bool:
    share = float(((job.delays.last == row) & job.works).mean())
    return (
        is_often(share, len(job.steps.ranks))
        and float(caused.mean()) >= job.least_ms
        and float(np.median(caused)) >= job.least_ms
    )


def _of_rank(job: Job, row: int, irregular: dict[int, Stalls]) -> list[Waiting]:
    """What one rank costs. Stalls of which nothing is known are left in `irregular`."""
    caused = job.delays.caused_by(row)
    lost_ms = float(caused.mean())
    found = stalls(caused, job.step_ms)
    always = _is_always_late(job, row, caused)
    stalled_ms = found.total_ms / len(caused)
    rises = rise(caused, job.least_ms) if lost_ms >= SHARE_LEAST * job.step_ms else None
    if rises is not None and rises.added >= RISE_CLAIMS * lost_ms:
        return [_rising(job, row, caused, rises)]
    if not always and stalled_ms < SHARE_LEAST * job.step_ms:
        return []
    if always:
        return _always(job, row, lost_ms, found)
    waiting = replace(
        _waiting(job, row, WaitKind.PERIODIC, stalled_ms, _at(found, len(caused))),
        events=len(found.at),
        period=period(found, job.steps.syncs, job.steps.begin_ms),
    )
    if _is_rank_0(job, row, waiting):
        return [replace(waiting, kind=WaitKind.RANK_0)]
    if waiting.period is not None:
        return [waiting]
    irregular[row] = found
    return []


def _always(job: Job, row: int, lost_ms: float, found: Stalls) -> list[Waiting]:
    """Late in most steps, and perhaps later yet at regular intervals."""
    was_last = (job.delays.last == row) & job.works
    usual = _waiting(job, row, WaitKind.LATE, lost_ms, was_last)
    usual = replace(usual, size_ratio=size_ratio(job.sizes, row))
    if _is_rank_0(job, row, usual):
        return [replace(usual, kind=WaitKind.RANK_0)]
    regular = period(found, job.steps.syncs, job.steps.begin_ms)
    more_ms = found.total_ms / len(was_last)
    if regular is None or more_ms < SHARE_LEAST * job.step_ms:
        return [usual]
    stalled = _waiting(job, row, WaitKind.PERIODIC, more_ms, _at(found, len(was_last)))
    return [
        replace(usual, lost_ms=lost_ms - more_ms),
        replace(stalled, events=len(found.at), period=regular),
    ]


def _rising(job: Job, row: int, caused: Floats, rises: Rise) -> Waiting:
    was_last = (job.delays.last == row) & job.works
    later = np.arange(len(caused)) >= (rises.since or len(caused) // 2)
    waiting = _waiting(job, row, WaitKind.DRIFT, rises.added, was_last & later)
    since = None if rises.since is None else int(job.steps.syncs[rises.since])
    top = waiting.lateness.excesses[0] if waiting.lateness else None
    term = top.phase.label if top and top.coverage >= ORIGIN_COVERS else None
    return replace(waiting, rise=rises, since=since, term=term)


def _waiting(job: Job, row: int, kind: WaitKind, lost_ms: float, when: Bools) -> Waiting:
    late_ms = float(job.delays.lateness_ms[row, when].mean()) if when.any() else 0.0
    lateness = Lateness(
        late_ms,
        float(((job.delays.last == row) & job.works).mean()),
        excesses(job.delays, row, when, late_ms, job.hot),
    )
    rank = int(job.steps.ranks[row])
    return Waiting(kind, (rank,), lost_ms, job.step_ms, job.noise_ms, lateness=lateness)


def _at(found: Stalls, steps: int) -> Bools:
    when = np.zeros(steps, np.bool_)
    when[found.at] = True
    return when


def _is_rank_0(job: Job, row: int, waiting: Waiting) -> bool:
    """Logging, saving, evaluating: what scripts do on rank 0 alone lies between its steps."""
    if job.steps.ranks[row] != 0 or waiting.lateness is None:
        return False
    top = waiting.lateness.excesses[0]
    return top.phase is Phase.BETWEEN and top.coverage >= ORIGIN_COVERS


def _uneven(job: Job) -> Waiting | None:
    """Ranks that are late in turn, each when its batch is large."""
    arrival, ranks = job.delays.arrival_ms, len(job.steps.ranks)
    lost_ms = float((arrival.max(axis=0) - arrival.mean(axis=0)).mean())
    shares = [float((job.delays.last == row).mean()) for row in range(ranks)]
    if is_often(max(shares), ranks) or lost_ms < job.least_ms:
        return None
    fit = _fit(job)
    if fit is None or fit.r < FOLLOWS_R:
        return None
    lateness = _of_the_last(job)
    return Waiting(
        WaitKind.UNEVEN, (), lost_ms, job.step_ms, job.noise_ms, lateness=lateness, fit=fit
    )


def _fit(job: Job) -> WorkFit | None:
    """Of the steps in which no rank was held up by something else."""
    sizes = {name: size[:, job.works] for name, size in job.sizes.items()}
    return follows(job.delays.lateness_ms[:, job.works], sizes)


def _irregular(job: Job, irregular: dict[int, Stalls]) -> list[Waiting]:
    """Delays of which no course is known: of one rank, or of several in turn."""
    caused = np.where(job.works, job.delays.caused_ms, 0.0)
    by_row = np.bincount(job.delays.last, weights=caused, minlength=len(job.steps.ranks))
    lost_ms = float(caused.mean())
    if lost_ms < job.least_ms:
        return []
    if by_row.max() >= MOST_OF_IT * caused.sum():
        own = irregular.get(int(by_row.argmax()))
        return _now_and_then(job, int(by_row.argmax()), own) if own is not None else []
    if lost_ms < TURNS_SHARE * job.step_ms:
        return []
    lateness, fit = _of_the_last(job), _fit(job)
    return [
        Waiting(
            WaitKind.IN_TURN, (), lost_ms, job.step_ms, job.noise_ms, lateness=lateness, fit=fit
        )
    ]


def _now_and_then(job: Job, row: int, own: Stalls) -> list[Waiting]:
    """Once is a pause that may never come again."""
    count = len(job.delays.last)
    if len(own.at) < 2:
        return []
    lost_ms = own.total_ms / count
    one = _waiting(job, row, WaitKind.NOW_AND_THEN, lost_ms, _at(own, count))
    return [replace(one, events=len(own.at))]


def _of_the_last(job: Job) -> Lateness:
    """Where the lateness of whichever rank was last comes from, over all steps."""
    at = (job.delays.last, np.arange(len(job.delays.last)))
    when = job.works
    late_ms = float(job.delays.lateness_ms[at][when].mean()) if when.any() else 0.0
    more = job.delays.more_ms[:, *at][:, when]
    shares = [float((job.delays.last == row).mean()) for row in range(len(job.steps.ranks))]
    excess = more.mean(axis=1) if when.any() else np.zeros(len(more))
    return Lateness(late_ms, max(shares), shares_of(excess, (), late_ms, HotLines({})))
