"""Who is where in the order of each group's collectives, by the records of recorded ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

from ddpdoctor.hang.snapshot import HangSnapshot, LastCollective


@dataclass(frozen=True)
class Behind:
    """A rank that has not reached a collective in which another one waits."""

    rank: int
    waiting: int
    awaited: LastCollective
    last: LastCollective | None  # its own newest of that group; None: it has made none yet


@dataclass(frozen=True)
class Crossed:
    """Two ranks that wait for each other, each in a group that the other has not come to.

    `ranks` are all that do.
    """

    one: Behind
    other: Behind
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class _Awaited:
    """A collective in which ranks stand, and those that have not come to it."""

    call: LastCollective
    waiting: frozenset[int]
    behind: dict[int, LastCollective | None]  # their newest of the group


def behind(snapshot: HangSnapshot) -> dict[int, Behind]:
    """Ranks that hold others up, each with a collective that is waited for."""
    return {
        rank: Behind(rank, min(each.waiting), each.call, last)
        for each in _awaited(snapshot)
        for rank, last in each.behind.items()
    }


def crossed(snapshot: HangSnapshot) -> Crossed | None:
    """Ranks that use two groups in opposite order."""
    found: list[tuple[int, int, _Awaited, _Awaited]] = []
    ranks: set[int] = set()
    for one, other in combinations(_awaited(snapshot), 2):
        here, there = one.waiting & other.behind.keys(), other.waiting & one.behind.keys()
        if here and there:
            ranks |= here | there
            found.append((min(here), min(there), one, other))
    if not found:
        return None
    here_first, there_first, one, other = min(found, key=lambda each: each[:2])
    return Crossed(
        Behind(there_first, here_first, one.call, one.behind[there_first]),
        Behind(here_first, there_first, other.call, other.behind[here_first]),
        tuple(sorted(ranks)),
    )


@dataclass(frozen=True)
class Misnamed:
    """A group that has other members on some ranks than on others, by who says so."""

    group: str
    told: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # members, and ranks that say so


def misnamed(snapshot: HangSnapshot) -> Misnamed | None:
    """torch numbers groups as a rank makes them: one name and other members, and some were not
    made by all.
    """
    groups: dict[str, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in snapshot.ranks:
        for last in rank.collectives if rank.rank is not None else ():
            groups[last.group][last.members].append(rank.rank or 0)
    for group, told in sorted(groups.items()):
        if len(told) > 1:
            said = sorted((members, tuple(ranks)) for members, ranks in told.items())
            return Misnamed(group, tuple(said))
    return None


def _awaited(snapshot: HangSnapshot) -> list[_Awaited]:
    """Each collective in which ranks stand, once, however many these are."""
    recorded = {rank.rank: rank for rank in snapshot.ranks if rank.rank is not None}
    newest = {
        rank: {last.group: last for last in process.collectives}
        for rank, process in recorded.items()
        if process.collectives
    }
    waiting: dict[tuple[str, int], dict[int, LastCollective]] = defaultdict(dict)
    for rank in sorted(newest):
        for last in newest[rank].values():
            if last.pending:
                waiting[last.group, last.seq][rank] = last
    return [_found(own, newest) for own in waiting.values()]


def _found(
    waiting: dict[int, LastCollective], newest: dict[int, dict[str, LastCollective]]
) -> _Awaited:
    call = next(iter(waiting.values()))
    late: dict[int, LastCollective | None] = {}
    for rank in sorted(newest.keys() & set(call.members)):
        last = newest[rank].get(call.group)
        if last is None or last.seq < call.seq:
            late[rank] = last
    return _Awaited(call, frozenset(waiting), late)
