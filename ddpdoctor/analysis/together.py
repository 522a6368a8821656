"""What takes time on all ranks at once: stalls at regular intervals, and a step that grows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.model import PhaseExcess
from ddpdoctor.analysis.shapes import BASE_QUANTILE, Rise, Stalls, period, rise, stalls
from ddpdoctor.analysis.stepwise import LOCAL_PHASES, Stepwise
from ddpdoctor.analysis.waitmodel import ORIGIN_COVERS, Lateness, Waiting, WaitKind
from ddpdoctor.analysis.worksizes import grows_with
from ddpdoctor.events import Phase
from ddpdoctor.findings import Location
from ddpdoctor.tracefile import RankTrace, Run

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SHARE_LEAST = 0.05  # of a step, for what is worth a line
RISE_LEAST = 0.10  # against the step before: caches and clocks settle within it
LEAST_MS = 1.0
ON_ALL = 0.5  # of a rise is in what each rank does, else it is in their waiting for each other
GROWS_WITH_R = 0.9  # as for lateness that follows the batches
DISTURBED_SHARE = 0.5  # of the rise again is more waiting for a CPU: caches suffer, too
TRANSFER = "transfer"


def of_all_ranks(
    run: Run, steps: Stepwise, sizes: Mapping[str, Floats], *, drifts: bool
) -> list[Waiting]:
    """`drifts`: a rank is known that comes later and later, which lengthens all steps."""
    first = next(trace for trace in run.ranks if trace.info.rank == steps.ranks[0])
    found = [_regular(steps, first)]
    if not drifts:
        found.append(_rising(steps, dict(sizes), first))
    return [waiting for waiting in found if waiting is not None]


def _regular(steps: Stepwise, first: RankTrace) -> Waiting | None:
    """Waiting for input in bursts is left to DD301, which knows the loaders."""
    spent = steps.undisturbed_ms - steps.of_phase(Phase.INPUT)
    usual = np.quantile(spent, BASE_QUANTILE, axis=1, keepdims=True)
    common = np.maximum(0.0, (spent - usual).min(axis=0))
    step_ms = float(steps.step_ms.mean())
    found = stalls(common, step_ms)
    regular = period(found, steps.syncs, steps.begin_ms)
    lost_ms = found.total_ms / len(common)
    if regular is None or lost_ms < SHARE_LEAST * step_ms:
        return None
    return Waiting(
        WaitKind.PERIODIC, (), lost_ms, step_ms, lateness=_of_stalls(steps, found, first),
        events=len(found.at), period=regular,
    )  # fmt: skip


def _of_stalls(steps: Stepwise, found: Stalls, first: RankTrace) -> Lateness:
    stall_ms = float(found.over_ms.mean())
    shares = []
    for phase in LOCAL_PHASES:
        own = steps.of_phase(phase)
        over = own[:, found.at] - np.quantile(own, BASE_QUANTILE, axis=1, keepdims=True)
        shares.append((phase, float(np.median(over, axis=0).mean())))
    return Lateness(stall_ms, 0.0, _excesses(shares, stall_ms, first))


def _excesses(
    shares: list[tuple[Phase, float]], whole_ms: float, first: RankTrace
) -> tuple[PhaseExcess, ...]:
    found = []
    for phase, excess_ms in shares:
        lines = [line for line in first.hot_lines if line.phase is phase]
        top = max(lines, key=lambda line: line.samples, default=None)
        samples = sum(line.samples for line in lines)
        where = None
        if top is not None:
            site = top.site
            where = Location(first.info.rank, site.file, site.line, site.function)
        coverage = excess_ms / whole_ms if whole_ms > 0 else 0.0
        found.append(PhaseExcess(phase, excess_ms, coverage, samples, where))
    return tuple(sorted(found, key=lambda excess: -excess.excess_ms))


def _rising(steps: Stepwise, sizes: dict[str, Floats], first: RankTrace) -> Waiting | None:
    held = np.nan_to_num(steps.queued_ms) + np.nan_to_num(steps.paused_ms)
    series = np.maximum(0.0, np.median(steps.step_ms, axis=0) - held.max(axis=0))
    step_ms = float(steps.step_ms.mean())
    found = rise(series, max(LEAST_MS, SHARE_LEAST * step_ms))
    if found is None or found.after - found.before < RISE_LEAST * found.before:
        return None
    if grows_with(series, sizes, GROWS_WITH_R):
        return None  # longer sequences take longer: that is meant
    later, before = _parts(len(series), found)
    whole_ms = float(np.median(series[later]) - np.median(series[before]))
    grown = {name: _growth(cells, later, before) for name, cells in _terms(steps).items()}
    top = max(grown, key=lambda name: grown[name])
    if sum(grown.values()) < ON_ALL * whole_ms:
        return None  # not on all ranks: other findings say who is late, and why
    shares = [(phase, grown[phase.label]) for phase in LOCAL_PHASES]
    queued = np.nan_to_num(steps.queued_ms)
    more_queued = float(queued[:, later].mean() - queued[:, before].mean())
    return Waiting(
        WaitKind.DRIFT, (), found.added, step_ms,
        since=None if found.since is None else int(steps.syncs[found.since]),
        lateness=Lateness(whole_ms, 0.0, _excesses(shares, whole_ms, first)),
        rise=found,
        term=top if grown[top] >= ORIGIN_COVERS * whole_ms else None,
        disturbed=more_queued >= DISTURBED_SHARE * whole_ms,
    )  # fmt: skip


def _parts(count: int, found: Rise) -> tuple[Bools, Bools]:
    """The steps after and before; of a gradual rise the last and the first quarter."""
    place = np.arange(count)
    if found.since is not None:
        return place >= found.since, place < found.since
    return place >= count - count // 4, place < count // 4


def _terms(steps: Stepwise) -> dict[str, Floats]:
    terms = {phase.label: steps.of_phase(phase) for phase in LOCAL_PHASES}
    terms[TRANSFER] = steps.transfer_ms
    return terms


def _growth(cells: Floats, later: Bools, before: Bools) -> float:
    """From the median step before to that after, of the rank for which it is least."""
    each = np.median(cells[:, later], axis=1) - np.median(cells[:, before], axis=1)
    return max(0.0, float(each.min()))
