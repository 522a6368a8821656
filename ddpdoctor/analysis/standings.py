"""The ranks and hosts of a run beside each other: own time, waiting, and who is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from ddpdoctor.analysis.grid import OWN_PHASES, median_of_others
from ddpdoctor.analysis.model import Analysis, PhaseTimes, RankStats
from ddpdoctor.analysis.ragged import Floats
from ddpdoctor.events import Phase


@dataclass(frozen=True)
class RankStanding:
    """One rank. `own_ms` is its step without wait and transfer; None: nothing was measured."""

    stats: RankStats
    own_ms: float | None
    over_ms: float | None  # own_ms over the median of the other ranks


@dataclass(frozen=True)
class HostStanding:
    """The ranks of one host: means over those that were measured."""

    host: str
    ranks: tuple[int, ...]
    own_ms: float | None
    wait_ms: float | None
    slowest: int | None
    slowest_ms: float | None


def rank_standings(analysis: Analysis) -> tuple[RankStanding, ...]:
    """In the order of ranks."""
    own = {stats.rank: own_ms(stats.times) for stats in analysis.ranks}
    return tuple(
        RankStanding(stats, own[stats.rank], _over_others(stats.rank, own))
        for stats in analysis.ranks
    )


def own_ms(times: PhaseTimes | None) -> float | None:
    """A step without the time in collectives."""
    return None if times is None else times.step_ms - times.blocked_ms


def _over_others(rank: int, own: dict[int, float | None]) -> float | None:
    mine = own[rank]
    others = [value for other, value in own.items() if other != rank and value is not None]
    return mine - median(others) if mine is not None and others else None


def host_standings(standings: tuple[RankStanding, ...]) -> tuple[HostStanding, ...]:
    """In the order of their first ranks."""
    by_host: dict[str, list[RankStanding]] = {}
    for each in standings:
        by_host.setdefault(each.stats.host, []).append(each)
    return tuple(_host(host, members) for host, members in by_host.items())


def _host(host: str, members: list[RankStanding]) -> HostStanding:
    own = [(each.own_ms, each.stats.rank) for each in members if each.own_ms is not None]
    waits = [each.stats.times.wait_ms for each in members if each.stats.times is not None]
    known = [wait for wait in waits if wait is not None]
    slowest_ms, slowest = max(own) if own else (None, None)
    return HostStanding(
        host,
        tuple(each.stats.rank for each in members),
        mean(value for value, _ in own) if own else None,
        mean(known) if known else None,
        slowest,
        slowest_ms,
    )


@dataclass(frozen=True)
class PhaseExcesses:
    """Milliseconds a step that each rank spends in each phase over the median of the others."""

    ranks: tuple[int, ...]
    phases: tuple[Phase, ...]
    excess_ms: Floats  # (rank, phase); NaN where it is not measured


def phase_excesses(analysis: Analysis) -> PhaseExcesses:
    times = np.array(
        [
            [getattr(stats.times, f"{phase.label}_ms", np.nan) for phase in OWN_PHASES]
            for stats in analysis.ranks
        ],
        np.float64,
    ).reshape(len(analysis.ranks), len(OWN_PHASES))
    ranks = tuple(stats.rank for stats in analysis.ranks)
    return PhaseExcesses(ranks, OWN_PHASES, times - median_of_others(times))
