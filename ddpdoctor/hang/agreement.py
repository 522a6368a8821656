"""Whether the ranks of a group made the same calls in the same order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ddpdoctor.hang.calls import Call, Dumps, RankCalls

MIN_SHIFTED: Final = 3  # calls in a row that fit once shifted: fewer fit by chance
_SAME_SIZES: Final = frozenset(  # their tensors must be alike on all ranks
    {"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"}
)
_Label = tuple[object, ...]


@dataclass(frozen=True)
class Party:
    """Ranks that made the same call, and that call on the first of them."""

    ranks: tuple[int, ...]
    call: Call


@dataclass(frozen=True)
class Mismatch:
    """Different calls with one number, those of the most ranks first."""

    parties: tuple[Party, ...]

    @property
    def culprits(self) -> tuple[int, ...]:
        """Those that differ from a clear majority; none where there is no such majority."""
        total = sum(len(party.ranks) for party in self.parties)
        if 2 * len(self.parties[0].ranks) <= total:
            return ()
        return tuple(sorted(rank for party in self.parties[1:] for rank in party.ranks))


@dataclass(frozen=True)
class Shift:
    """`ahead` made a call that `behind` did not make, and is one number ahead from there on."""

    ahead: tuple[int, ...]
    behind: tuple[int, ...]
    extra: Call  # as `ahead` made it
    instead: Call | None  # what `behind` made with that number; None: it came to none
    fitting: int = 0  # calls behind it that fit once shifted

    @property
    def culprits(self) -> tuple[int, ...]:
        """The fewer; none of two equals, since a call too many here is one too few there."""
        if len(self.ahead) == len(self.behind):
            return ()
        return min(self.ahead, self.behind, key=len)


def mismatch_at(place: tuple[str, int], ranks: Iterable[RankCalls]) -> Mismatch | None:
    """What is different between the calls with this group and number."""
    parties: dict[_Label, list[tuple[int, Call]]] = defaultdict(list)
    for each in ranks:
        call = each.collectives.get(place)
        if call:
            parties[_must_agree(call)].append((each.rank, call))
    if len(parties) < 2:
        return None
    found = [Party(tuple(r for r, _ in made), made[0][1]) for made in parties.values()]
    return Mismatch(tuple(sorted(found, key=lambda party: -len(party.ranks))))


def _must_agree(call: Call) -> _Label:
    if call.op not in _SAME_SIZES:
        return (call.op,)
    return (call.op, call.inputs, call.dtypes)


def shift_in(group: str, ranks: Sequence[RankCalls]) -> Shift | None:
    """Whether the ranks of a group fall in two, and fit once one of them is shifted by one call."""
    known = {each.rank: calls for each in ranks if (calls := _of_group(each, group))}
    if len(known) < 2:
        return None
    first = max(min(calls) for calls in known.values())
    last = min(max(calls) for calls in known.values())
    with_site = all(call.site for calls in known.values() for call in calls.values())
    camps: dict[tuple[_Label, ...], list[int]] = defaultdict(list)
    for rank, calls in known.items():
        camps[tuple(_label(calls.get(n), with_site) for n in range(first, last + 1))].append(rank)
    if len(camps) != 2:
        return None
    one, other = camps.values()
    found = (_shifted(known, one, other, with_site), _shifted(known, other, one, with_site))
    # two calls in turn fit either way: what fits longer is right, else who came further is ahead
    return max(
        (shift for shift in found if shift),
        key=lambda shift: (shift.fitting, max(known[shift.ahead[0]])),
        default=None,
    )


def _of_group(each: RankCalls, group: str) -> dict[int, Call]:
    return {seq: call for (name, seq), call in each.collectives.items() if name == group}


def _label(call: Call | None, with_site: bool) -> _Label:
    if call is None:
        return ()
    site = (call.site.file, call.site.line) if with_site and call.site else ()
    return (*_must_agree(call), site)


def _shifted(
    known: dict[int, dict[int, Call]], ahead: list[int], behind: list[int], with_site: bool
) -> Shift | None:
    """Whether each call of `behind` is the next one of `ahead`, from some difference on.

    Differences before that one are none of the order: `if rank == 0:` and `else:`, each with a
    call.
    """
    mine, theirs = known[ahead[0]], known[behind[0]]
    fitting = 0
    fits_from = None
    for number in sorted((n for n in theirs if n + 1 in mine), reverse=True):
        if _label(theirs[number], with_site) != _label(mine[number + 1], with_site):
            break
        fitting, fits_from = fitting + 1, number
    if fits_from is None:
        return None
    differing = [
        number
        for number in sorted(mine.keys() & theirs.keys())
        if number >= fits_from
        and _label(mine[number], with_site) != _label(theirs[number], with_site)
    ]
    if len(differing) < 2:  # only one: it is no shift, the next ones fit as they are
        return None
    since = differing[0]
    fitting -= since - fits_from
    if fitting < MIN_SHIFTED:
        return None
    return Shift(tuple(ahead), tuple(behind), mine[since], theirs[since], fitting)


def ahead_alone(front: Call, dumps: Dumps) -> Shift | None:
    """A single rank in a call that none of several others made, while they wait in nothing."""
    members = dumps.members.get(front.group, ())
    alone = [each.rank for each in dumps.ranks if each.front == front]
    others = tuple(rank for rank in members if rank not in alone)
    if front.point_to_point or len(alone) != 1 or len(others) < 2:
        return None
    known = [dumps.by_rank[rank] for rank in others if rank in dumps.by_rank]
    if any(calls.newest.get(front.group) != front.seq - 1 for calls in known):
        return None
    return Shift(tuple(alone), others, front, None)
