"""Who is where in the order of each group's collectives, by the records of recorded ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from ddpdoctor.hang.snapshot import HangSnapshot, LastCollective, RankProcess


@dataclass(frozen=True)
class Behind:
    """A rank that has not reached a collective in which another one waits."""

    rank: int
    waiting: int
    awaited: LastCollective
    last: LastCollective | None  # its own newest of that group; None: it has made none yet


def behind(snapshot: HangSnapshot) -> dict[int, Behind]:
    """Ranks that hold others up, each with the collective that is waited for."""
    return {found.rank: found for found in _all_behind(snapshot)}


def crossed(snapshot: HangSnapshot) -> tuple[tuple[Behind, Behind], ...]:
    """Pairs of ranks that wait for each other, each in a group that the other has not come to."""
    found = {(each.rank, each.waiting): each for each in _all_behind(snapshot)}
    return tuple(
        (each, found[waiting, rank])
        for (rank, waiting), each in sorted(found.items())
        if waiting < rank and (waiting, rank) in found
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


def _all_behind(snapshot: HangSnapshot) -> Iterator[Behind]:
    recorded = [rank for rank in snapshot.ranks if rank.rank is not None and rank.collectives]
    for waiting in recorded:
        for awaited in waiting.collectives:
            if awaited.pending:
                yield from _behind(recorded, waiting, awaited)


def _behind(
    recorded: list[RankProcess], waiting: RankProcess, awaited: LastCollective
) -> Iterator[Behind]:
    for rank in recorded:
        if rank.rank is None or waiting.rank is None or rank.rank not in awaited.members:
            continue
        last = next((own for own in rank.collectives if own.group == awaited.group), None)
        if last is None or last.seq < awaited.seq:
            yield Behind(rank.rank, waiting.rank, awaited, last)
