"""What holds ranks up whatever they do: garbage collection, a CPU quota, no free CPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.analysis.delays import Delays
from ddpdoctor.analysis.stepwise import Stepwise
from ddpdoctor.analysis.waitmodel import Held, Waiting, WaitKind
from ddpdoctor.events import RankInfo
from ddpdoctor.tables import Tables
from ddpdoctor.tracefile import Run

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

LEAST_SHARE = 0.02  # of a step; less is not worth a line
QUEUE_LEAST_SHARE = 0.20  # below, cores that are shared by plan look the same
PAUSES_NEEDED = 3  # the first ones clear up after the imports
QUOTA_EXPLAINS = 0.5  # of a rank's wait for a CPU
AS_MUCH = 0.5  # of what the rank with most has: that rank is held up, too
LONGER_TIMES = 1.5  # later pauses against earlier ones
GROWTH_NEEDED = 6  # pauses, to tell a growth from two that differ
_NS_PER_MS = 1e6


def held_up(run: Run, tables: Tables, steps: Stepwise, delays: Delays | None) -> list[Waiting]:
    infos = {trace.info.rank: trace.info for trace in run.ranks}
    by_rank = [infos[int(rank)] for rank in steps.ranks]
    throttled = _mean(steps.throttled_ms)
    limited = (throttled > 0) & (throttled >= QUOTA_EXPLAINS * _mean(steps.queued_ms))
    found = (
        _pauses(tables, steps, delays),
        _quota(steps, delays, limited),
        _queue(steps, delays, limited, by_rank),
    )
    return [waiting for waiting in found if waiting is not None]


def _mean(cells: Floats) -> Floats:
    """Of each rank; 0 where it was not measured."""
    return np.asarray(np.nan_to_num(cells).mean(axis=1))


def _gain_ms(steps: Stepwise, delays: Delays | None, held_ms: Floats) -> float:
    """What a step gains. Where arrivals are not known: what the rank with most is held up."""
    if delays is None:
        return float(_mean(held_ms).max())
    among = np.isin(steps.syncs, delays.steps.syncs)
    return delays.gain_ms(held_ms[:, among])


def _pauses(tables: Tables, steps: Stepwise, delays: Delays | None) -> Waiting | None:
    spent = _mean(steps.paused_ms)
    gain = delays.gain_ms(delays.paused_ms) if delays is not None else float(spent.max())
    pauses = tables.pauses
    first, last = (int(syncs) for syncs in (steps.syncs[0], steps.syncs[-1]))
    numbers = tables.steps[["rank", "step"]][tables.steps["sync"].between(first, last)]
    pauses = pauses.merge(numbers.drop_duplicates(), on=["rank", "step"])
    worst = pauses[pauses["rank"] == steps.ranks[spent.argmax()]]
    step_ms = float(steps.step_ms.mean())
    if gain < LEAST_SHARE * step_ms or len(worst) < PAUSES_NEEDED:
        return None
    lengths = (worst["end_ns"] - worst["begin_ns"]).to_numpy(np.float64) / _NS_PER_MS
    held = Held(
        _by_rank(steps, spent), len(worst), float(lengths.max()), grows=_grows(worst, lengths)
    )
    ranks = _most(steps.ranks, spent)
    return Waiting(WaitKind.PAUSES, ranks, gain, step_ms, held=held)


def _grows(pauses: pd.DataFrame, lengths: Floats) -> bool:
    if len(lengths) < GROWTH_NEEDED:
        return False
    lengths = lengths[np.argsort(pauses["begin_ns"].to_numpy())]
    half = len(lengths) // 2
    return float(np.median(lengths[half:])) >= LONGER_TIMES * float(np.median(lengths[:half]))


def _quota(steps: Stepwise, delays: Delays | None, limited: Bools) -> Waiting | None:
    """The kernel books a quota's stops late, so a limited rank's whole wait for a CPU counts."""
    if not limited.any():
        return None
    held_ms = np.where(limited[:, None], np.nan_to_num(steps.queued_ms), 0.0)
    return _held(WaitKind.QUOTA, steps, delays, held_ms, LEAST_SHARE)


def _queue(
    steps: Stepwise, delays: Delays | None, limited: Bools, infos: list[RankInfo]
) -> Waiting | None:
    """Without what may have been waited for within a collection, which is said as such."""
    queued = np.nan_to_num(steps.queued_ms) - np.nan_to_num(steps.paused_ms)
    held_ms = np.where(limited[:, None], 0.0, np.maximum(0.0, queued))
    sharing, asking = _shares_cpus(infos), ask_too_much(infos)
    found = _held(
        WaitKind.QUEUE,
        steps,
        delays,
        held_ms,
        QUEUE_LEAST_SHARE,
        own_doing=bool(asking),
        shares_cpus=sharing,
    )
    if found is None or sharing or not asking:
        return found
    # whichever of these ranks finds no CPU, the threads of all of them hold the others
    return replace(found, ranks=() if len(asking) == len(steps.ranks) else asking)


def _held(  # noqa: PLR0913  what a kind of holding up is
    kind: WaitKind,
    steps: Stepwise,
    delays: Delays | None,
    held_ms: Floats,
    least_share: float,
    *,
    own_doing: bool = False,
    shares_cpus: tuple[int, ...] = (),
) -> Waiting | None:
    gain, step_ms = _gain_ms(steps, delays, held_ms), float(steps.step_ms.mean())
    if gain < least_share * step_ms:
        return None
    spent = _mean(held_ms)
    held = Held(_by_rank(steps, spent), own_doing=own_doing, shares_cpus=shares_cpus)
    return Waiting(kind, _most(steps.ranks, spent), gain, step_ms, held=held)


def _by_rank(steps: Stepwise, spent: Floats) -> dict[int, float]:
    return {int(rank): float(ms) for rank, ms in zip(steps.ranks, spent, strict=True)}


def _most(ranks: Ints, spent: Floats) -> tuple[int, ...]:
    """The ranks that are held up most; () where all of them are."""
    most = spent >= AS_MUCH * spent.max()
    return () if most.all() and len(ranks) > 1 else tuple(int(rank) for rank in ranks[most])


def ask_too_much(infos: Iterable[RankInfo]) -> tuple[int, ...]:
    """Ranks of hosts on which their threads are more than its CPUs, by the number of threads.

    More ranks than CPUs are no matter of threads: where each has one thread, nothing is to be set.
    """
    found: list[int] = []
    for own in _by_host(infos).values():
        cpus = max(info.cpus or 0 for info in own)
        threads = [info.threads or 0 for info in own]
        if cpus and sum(threads) > cpus and max(threads) > max(1, cpus // len(own)):
            found += [info.rank for info in own]
    return tuple(sorted(found))


def _shares_cpus(infos: Iterable[RankInfo]) -> tuple[int, ...]:
    """Ranks that may use the same few CPUs, on a host that has one for each rank."""
    found: list[int] = []
    for own in _by_host(infos).values():
        by_mask: dict[tuple[tuple[int, int], ...], list[RankInfo]] = {}
        for info in own:
            by_mask.setdefault(info.allowed_cpus, []).append(info)
        for mask, together in by_mask.items():
            cpus = sum(last - first + 1 for first, last in mask)
            enough = all((info.host_cpus or 0) >= len(own) for info in together)
            if mask and enough and len(together) > cpus:
                found += [info.rank for info in together]
    return tuple(sorted(found))


def _by_host(infos: Iterable[RankInfo]) -> dict[str, list[RankInfo]]:
    hosts: dict[str, list[RankInfo]] = {}
    for info in infos:
        hosts.setdefault(info.host, []).append(info)
    return hosts
