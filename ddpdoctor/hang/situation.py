"""What kind of hang it is. Each check asks for its own kind, so that a cause has one finding."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ddpdoctor.hang.activity import Activity, Place, is_waiting, moves, place_of
from ddpdoctor.hang.agreement import Mismatch, Shift
from ddpdoctor.hang.position import Position, position, position_of, script_path
from ddpdoctor.hang.snapshot import HangSnapshot, RankProcess
from ddpdoctor.stackframes import Frame


class Kind(Enum):
    RANK_DEAD = auto()
    RANK_STOPPED = auto()
    MOVES = auto()  # some rank does something
    HELD_UP = auto()  # some wait for others, which are elsewhere
    DIFFERENT_CALLS = auto()  # all wait, at different places
    SAME_CALL = auto()  # all wait, at the same place
    NOBODY_WAITS = auto()
    ENDING = auto()  # all are past their last line, and stand still there
    UNREADABLE = auto()
    LAUNCHING = auto()  # there are no ranks yet


@dataclass(frozen=True)
class Seen:
    """A rank with what it does."""

    process: RankProcess
    place: Place
    moves: bool

    @property
    def holds_gil(self) -> bool:
        """Whether it stands still within native code that keeps Python's lock."""
        holder = any(thread.owns_gil for thread in self.process.threads)
        return holder and not is_waiting(self.place) and not self.process.on_gpu

    @property
    def number(self) -> int | None:
        return self.process.rank


@dataclass(frozen=True)
class Situation:
    """The ranks of a snapshot, sorted by what they do."""

    kind: Kind
    waiting: tuple[Seen, ...]
    elsewhere: tuple[Seen, ...]
    unreadable: tuple[Seen, ...]

    @property
    def all(self) -> tuple[Seen, ...]:
        everyone = self.waiting + self.elsewhere + self.unreadable
        return tuple(sorted(everyone, key=lambda seen: (seen.number is None, seen.number or 0)))

    @property
    def stands_still(self) -> bool:
        """Whether it is the order of calls that may explain it: ranks wait, and nothing moves."""
        return self.kind in (Kind.HELD_UP, Kind.DIFFERENT_CALLS, Kind.SAME_CALL)

    def leavers(self) -> tuple[Seen, ...]:
        """Ranks that are past a loop in which others wait."""
        if self.kind not in (Kind.HELD_UP, Kind.DIFFERENT_CALLS):
            return ()
        inside = {script_path(s.process) for s in self.waiting if _is_in_collective(s)}
        known: dict[tuple[Frame, ...], bool] = {}  # a thousand ranks stand at few places

        def has_left(seen: Seen) -> bool:
            if seen.place.activity is Activity.LEAVING:
                return bool(inside)
            path = script_path(seen.process)
            if path not in known:
                known[path] = any(
                    position_of(path, other) is Position.LEFT_LOOP for other in inside
                )
            return known[path]

        return tuple(seen for seen in self.waiting + self.elsewhere if has_left(seen))


def _is_in_collective(seen: Seen) -> bool:
    return seen.place.activity is Activity.COLLECTIVE


def situation(snapshot: HangSnapshot) -> Situation:
    """Sort the ranks and name the kind."""
    seen = [Seen(rank, place_of(rank), moves(rank)) for rank in snapshot.ranks]
    unreadable = [each for each in seen if each.place.activity is Activity.UNKNOWN]
    waiting = [each for each in seen if is_waiting(each.place)]
    told = {id(each) for each in (*unreadable, *waiting)}
    elsewhere = [each for each in seen if id(each) not in told]
    kind = _kind(snapshot, seen, waiting, elsewhere)
    return Situation(kind, tuple(waiting), tuple(elsewhere), tuple(unreadable))


def _kind(
    snapshot: HangSnapshot, seen: list[Seen], waiting: list[Seen], elsewhere: list[Seen]
) -> Kind:
    signs = (  # the first that holds
        (snapshot.launcher is not None, Kind.LAUNCHING),
        (any(dead.failed for dead in snapshot.dead), Kind.RANK_DEAD),
        (any(each.process.is_stopped for each in seen), Kind.RANK_STOPPED),
        (any(each.moves for each in seen) or bool(snapshot.ended), Kind.MOVES),
        (bool(seen) and all(each.place.activity is Activity.LEAVING for each in seen), Kind.ENDING),
        (bool(snapshot.dead), Kind.RANK_DEAD),  # ended well: matters if the others stand still
        (len(waiting) + len(elsewhere) < len(seen) or not seen, Kind.UNREADABLE),
        (not waiting, Kind.NOBODY_WAITS),
        (bool(elsewhere), Kind.HELD_UP),
        (bool(waiting) and _same_call(waiting), Kind.SAME_CALL),
    )
    return next((kind for holds, kind in signs if holds), Kind.DIFFERENT_CALLS)


def _same_call(waiting: list[Seen]) -> bool:
    first = waiting[0]
    return all(
        each.place.call == first.place.call
        and position(each.process, first.process) is Position.SAME
        for each in waiting[1:]
    )


def shift_told(snapshot: HangSnapshot) -> Shift | None:
    """Whether the ranks themselves tell that one is one call ahead: then that is the cause."""
    shift = snapshot.told.shift if snapshot.told else None
    return shift if shift and shift.fitting and situation(snapshot).stands_still else None


def mismatch_told(snapshot: HangSnapshot) -> Mismatch | None:
    """Whether the ranks themselves tell that they are in calls that do not belong together."""
    if snapshot.told is None or not situation(snapshot).stands_still:
        return None
    return snapshot.told.mismatch


def numbers(ranks: tuple[Seen, ...]) -> tuple[int, ...]:
    """Their ranks, as far as known."""
    return tuple(sorted(each.number for each in ranks if each.number is not None))
