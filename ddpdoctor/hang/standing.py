"""Who waits for whom, by the calls of the ranks: from each rank's oldest pending call to the cause.

A rank waits for the ranks that have not come to its call: those that never issued it, and those
that issued it and are held up in an older one. At the end of these chains stand the ranks that wait
for nobody. What they do is the cause; the waiting of all others follows from it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ddpdoctor.hang.agreement import Mismatch, Shift, ahead_alone, mismatch_at, shift_in
from ddpdoctor.hang.calls import Call, Dumps, RankCalls

_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})  # some may go on before others


@dataclass(frozen=True)
class Standing:
    """The chains and their ends. One of the first three explains the rest, if it is there."""

    dumps: Dumps
    awaits: dict[int, frozenset[int]]  # of each rank that is in a call
    late: frozenset[int] = frozenset()  # their device has not come to what others' have started

    @cached_property
    def waiting(self) -> tuple[int, ...]:
        return tuple(sorted(self.awaits))

    @cached_property
    def _ends(self) -> frozenset[int]:
        awaited = frozenset[int]().union(*self.awaits.values())
        return frozenset(rank for rank in awaited | set(self.awaits) if not self.awaits.get(rank))

    @cached_property
    def shift(self) -> Shift | None:
        """One rank is one call ahead of the others, or one behind."""
        groups = {call.group for call in self._fronts if not call.point_to_point}
        for group in sorted(groups):
            found = shift_in(group, self.dumps.ranks)
            if found:
                return found
        if len(self._fronts) == 1 and not self.gone_or_unread:
            return ahead_alone(self._fronts[0], self.dumps)
        return None

    @cached_property
    def mismatch(self) -> Mismatch | None:
        """Calls with the same number that do not belong together."""
        if self.shift:
            return None
        places = {call.place: call for call in self._fronts if not call.point_to_point}
        found = (mismatch_at(place, self.dumps.ranks) for place in sorted(places))
        return next((each for each in found if each), None)

    @cached_property
    def circle(self) -> tuple[int, ...]:
        """Ranks that wait for each other, each for the next one and the last for the first."""
        if self.shift or self.mismatch:
            return ()
        left = self.awaits.keys() - self._led_to_an_end
        path: dict[int, None] = {}
        rank = min(left, default=None)
        while rank is not None and rank not in path:
            path[rank] = None
            rank = min(self.awaits[rank])
        return tuple(path)[list(path).index(rank) :] if rank is not None else ()

    @cached_property
    def _led_to_an_end(self) -> set[int]:
        """The ends, and those that wait for one of them, or for one that does.

        Each set of awaited ranks is gone through once, of however many ranks it is.
        """
        by_awaited: dict[frozenset[int], list[int]] = defaultdict(list)
        for rank, others in self.awaits.items():
            by_awaited[others].append(rank)
        holding: dict[int, list[frozenset[int]]] = defaultdict(list)
        for others in by_awaited:
            for other in others:
                holding[other].append(others)
        found, todo = set(self._ends), list(self._ends)
        while todo:
            for others in holding[todo.pop()]:
                new = [rank for rank in by_awaited.pop(others, ()) if rank not in found]
                found.update(new)
                todo += new
        return found

    @property
    def is_explained(self) -> bool:
        return bool(self.shift or self.mismatch or self.circle)

    @cached_property
    def gone_or_unread(self) -> tuple[int, ...]:
        """Ranks without a dump that others wait for."""
        return tuple(sorted(self._ends - self.dumps.by_rank.keys()))

    @cached_property
    def absent(self) -> tuple[int, ...]:
        """Ranks that others wait for and that are in no call."""
        return tuple(sorted(rank for rank in self._ends if self._is_idle(rank)))

    @cached_property
    def stuck(self) -> tuple[int, ...]:
        """Ranks in which a call does not complete that others of its group have completed."""
        return tuple(sorted(rank for rank in self._ends if self._is_stuck(rank)))

    @cached_property
    def together(self) -> tuple[int, ...]:
        """Ranks that are in one call with all that belong to it."""
        if self.gone_or_unread or self.absent or self.stuck:
            return ()
        return tuple(sorted(r for r in self._ends if (front := self.front(r)) and _says_who(front)))

    def front(self, rank: int) -> Call | None:
        calls = self.dumps.by_rank.get(rank)
        return calls.front if calls else None

    def passed_by(self, front: Call) -> tuple[int, ...]:
        """Ranks that have completed this collective."""
        if front.place not in self._passed:
            members = (self.dumps.by_rank.get(rank) for rank in self.dumps.members[front.group])
            passed = (each.rank for each in members if each and _has_passed(each, front))
            self._passed[front.place] = tuple(passed)
        return self._passed[front.place]

    @cached_property
    def _passed(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """What was found once: a thousand ranks ask for the same collective."""
        return {}

    @cached_property
    def _there(self) -> Counter[tuple[str, int]]:
        """How many ranks are in each call."""
        return Counter(each.front.place for each in self.dumps.ranks if each.front is not None)

    @cached_property
    def _fronts(self) -> list[Call]:
        return [call for rank in self.waiting if (call := self.front(rank))]

    def _is_idle(self, rank: int) -> bool:
        return rank in self.dumps.by_rank and self.front(rank) is None

    def _is_stuck(self, rank: int) -> bool:
        front = self.front(rank)
        if front is None or front.point_to_point or front.op in _ROOTED:
            return rank in self.late
        return rank in self.late or self._there[front.place] <= len(self.passed_by(front))


def _has_passed(calls: RankCalls, front: Call) -> bool:
    own = calls.collectives.get(front.place)
    if own is None:
        return calls.newest.get(front.group, -1) > front.seq
    return calls.has_completed(own)


def standing(dumps: Dumps) -> Standing:
    """The chains of who waits for whom."""
    by_place: dict[tuple[str, int], tuple[frozenset[int], frozenset[int], frozenset[int]]] = {}
    awaits: dict[int, frozenset[int]] = {}
    late: set[int] = set()
    for each in dumps.ranks:
        front = each.front
        if front is None:
            continue
        if front.point_to_point:
            awaits[each.rank] = _peer_of(each.rank, front, dumps)
            continue
        if front.place not in by_place:
            not_there, behind = frozenset(_not_there(front, dumps)), _late(front, dumps)
            by_place[front.place] = (not_there, behind, not_there | behind)
        not_there, behind, both = by_place[front.place]
        late |= behind
        awaits[each.rank] = not_there if each.rank in behind else both
    return Standing(dumps, awaits, frozenset(late))


def _late(front: Call, dumps: Dumps) -> frozenset[int]:
    """Ranks whose device has not begun this call, where that of others has (if torch times it)."""
    fronts = {
        each.rank: each.front.state
        for each in dumps.ranks
        if each.front is not None and each.front.place == front.place
    }
    if "started" not in fronts.values():
        return frozenset()
    return frozenset(rank for rank, state in fronts.items() if state == "scheduled")


def _not_there(front: Call, dumps: Dumps) -> Iterable[int]:
    """Members of the group that have not come to this call."""
    for member in dumps.members[front.group]:
        calls = dumps.by_rank.get(member)
        if calls is None:
            yield member
            continue
        own = calls.collectives.get(front.place)
        if own is None:
            if calls.newest.get(front.group, -1) < front.seq:
                yield member
        elif (
            not calls.has_completed(own)
            and calls.front is not None
            and calls.front.place != front.place
        ):
            yield member


def _peer_of(rank: int, front: Call, dumps: Dumps) -> frozenset[int]:
    """The other side of a send or receive, unless it is in the call that belongs to this one."""
    if front.peer is None or front.peer == rank:
        return frozenset()
    calls = dumps.by_rank.get(front.peer)
    theirs = calls.front if calls else None
    meets = theirs is not None and theirs.point_to_point and theirs.peer == rank
    if meets and theirs is not None and theirs.op != front.op:
        return frozenset()
    return frozenset({front.peer})


def _says_who(call: Call) -> bool:
    return not call.point_to_point or call.peer is not None
