"""Hosts of which all ranks are late: then the machine is slow, and not one of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.arrivals import shares_of
from ddpdoctor.analysis.delays import HELD_EXPLAINS, Arrivals
from ddpdoctor.analysis.waitjob import Job, is_often
from ddpdoctor.analysis.waitmodel import Lateness, Waiting, WaitKind

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

TOGETHER = 0.5  # of what its last rank is late by its first is, too; else it is that rank
FEWEST_RANKS = 2  # of a host; a single late rank may be late for its own work
_NEVER = -(2**62)
_NS_PER_MS = 1e6


def slow_hosts(job: Job) -> list[Waiting]:
    """Hosts whose ranks are together the last in most steps; none where there is one host."""
    names = {trace.info.rank: trace.info.host for trace in job.run.ranks}
    hosts, of_row = np.unique([names[int(r)] for r in job.steps.ranks], return_inverse=True)
    if len(hosts) < 2:
        return []
    last_host, gap_ms = _gaps(job.delays.every, of_row.astype(np.int64), len(job.steps.syncs))
    found = []
    for number in range(len(hosts)):
        rows = np.flatnonzero(of_row == number)
        when = last_host == number
        if not is_often(float(when.mean()), len(hosts)):
            continue
        when &= ~_is_held_up(job, rows, gap_ms)
        waited = np.where(when, gap_ms, 0.0)
        often = is_often(float(when.mean()), len(hosts))
        typical = min(float(waited.mean()), float(np.median(waited)))
        if len(rows) >= FEWEST_RANKS and often and typical >= job.least_ms:
            found.append(_waiting(job, rows, when, float(waited.mean())))
    return found


def _gaps(arrivals: Arrivals, of_row: Ints, steps: int) -> tuple[Ints, Floats]:
    """By step: the host whose ranks all came after all others, and by how much the last did.

    -1 and 0 where there is none. Of a step's collectives the one with the largest gap counts.
    """
    first, last = _spans_of_hosts(arrivals.ns, of_row)
    host = last.argmax(axis=0)[None]
    latest = np.take_along_axis(last, host, axis=0)[0]
    np.put_along_axis(last, host, _NEVER, axis=0)
    next_one = last.max(axis=0)
    earliest = np.take_along_axis(first, host, axis=0)[0]
    is_whole = earliest - next_one >= TOGETHER * (latest - next_one)
    gap = np.where(is_whole, latest - next_one, 0)
    by_gap = np.lexsort((-gap, arrivals.step))
    reached, first = np.unique(arrivals.step[by_gap], return_index=True)
    chosen = by_gap[first]
    last_host, gap_ms = np.full(steps, -1), np.zeros(steps)
    gap_ms[reached] = gap[chosen] / _NS_PER_MS
    last_host[reached] = np.where(gap[chosen] > 0, host[0][chosen], -1)
    return last_host, gap_ms


def _spans_of_hosts(ns: Ints, of_row: Ints) -> tuple[Ints, Ints]:
    """The first and the last arrival on each host, (host, collective)."""
    first = np.full((int(of_row.max()) + 1, ns.shape[1]), -_NEVER)
    last = np.full_like(first, _NEVER)
    for host, own in zip(of_row.tolist(), ns, strict=True):
        np.minimum(first[host], own, out=first[host])
        np.maximum(last[host], own, out=last[host])
    return first, last


def _is_held_up(job: Job, rows: Ints, gap_ms: Floats) -> Bools:
    """Steps in which these ranks lacked a CPU, or collected garbage, for half of the gap."""
    held = np.zeros(len(gap_ms), np.bool_)
    for cells in (job.steps.queued_ms, job.delays.paused_ms):
        own, others = cells[rows].mean(axis=0), np.delete(cells, rows, axis=0)
        more = np.nan_to_num(own - np.median(others, axis=0)) if len(others) else 0.0 * own
        held |= (more >= HELD_EXPLAINS * gap_ms) & (more > 0)
    return held


def _waiting(job: Job, rows: Ints, when: Bools, lost_ms: float) -> Waiting:
    late_ms = lost_ms / float(when.mean())
    own, others = job.steps.own_ms[:, rows], np.delete(job.steps.own_ms, rows, axis=1)
    more = own.mean(axis=1) - np.median(others, axis=1)
    ranks = tuple(int(rank) for rank in job.steps.ranks[rows])
    lateness = Lateness(
        late_ms,
        float(when.mean()),
        shares_of(more[:, when].mean(axis=1), ranks, late_ms, job.hot),
    )
    return Waiting(WaitKind.HOST, ranks, lost_ms, job.step_ms, job.noise_ms, lateness=lateness)
