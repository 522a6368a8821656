"""What ranks called, as torch's flight recorder tells it: the calls of each rank, in order. No I/O.

Calls of several ranks are one collective if group and sequence number agree. Sends and receives
have numbers of each rank's own and are put together by their two ranks instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

Sizes = tuple[tuple[int, ...], ...]
DEFAULT_GROUP: Final = "0"  # torch's name of the group of all ranks


@dataclass(frozen=True)
class CallSite:
    """The innermost line of the user's that made a call."""

    file: str
    line: int
    function: str

    @property
    def text(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@dataclass(frozen=True)
class Call:
    """One collective, or one send or receive, of one rank.

    `seq` is torch's number: within the group, from 1. `state` tells more than `done` only where
    torch times the calls (NCCL); on gloo it is always `scheduled`.
    """

    group: str
    seq: int
    op: str
    done: bool
    state: str = "scheduled"
    created_ns: int = 0  # wall clock
    inputs: Sizes = ()
    outputs: Sizes = ()
    dtypes: tuple[str, ...] = ()
    point_to_point: bool = False
    peer: int | None = None  # the other rank of a send or receive, where it is told
    site: CallSite | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Where it stands in the order of its group."""
        return (self.group, self.seq)

    @property
    def name(self) -> str:
        """`all_reduce at train.py:12`."""
        return f"{self.op} at {self.site.text}" if self.site else self.op

    @property
    def text(self) -> str:
        """`all_reduce (number 9 of group 0) at train.py:12`."""
        at = f" at {self.site.text}" if self.site else ""
        if self.point_to_point:
            direction = {"send": "to", "recv": "from"}.get(self.op, "with")
            whom = "a rank" if self.peer is None else f"rank {self.peer}"
            return f"{self.op} {direction} {whom}{at}"
        return f"{self.op} (number {self.seq} of group {self.group}){at}"


@dataclass(frozen=True)
class CallGroup:
    """A process group as a rank knows it. `members` are global ranks, empty if not told (gloo)."""

    name: str
    description: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class RankCalls:
    """The newest calls of one rank, oldest first. NCCL's dumps may hold only what is not done."""

    rank: int
    calls: tuple[Call, ...]
    groups: tuple[CallGroup, ...] = ()
    source: str = ""  # the file

    @cached_property
    def pending(self) -> tuple[Call, ...]:
        return tuple(call for call in self.calls if not self.has_completed(call))

    def has_completed(self, call: Call) -> bool:
        """A group's collectives complete in order; torch may note that of one late or never."""
        if call.point_to_point:
            return call.done
        return call.done or call.seq < self._newest_done.get(call.group, -1)

    @property
    def front(self) -> Call | None:
        """What it is in: the oldest call that is not done. Those behind it wait for that one."""
        return next(iter(self.pending), None)

    @cached_property
    def collectives(self) -> dict[tuple[str, int], Call]:
        return {call.place: call for call in self.calls if not call.point_to_point}

    @cached_property
    def _newest_done(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for (group, seq), call in self.collectives.items():
            if call.done:
                found[group] = max(seq, found.get(group, seq))
        return found

    @cached_property
    def newest(self) -> dict[str, int]:
        """Of each group the highest number that it has called."""
        found: dict[str, int] = {}
        for group, seq in self.collectives:
            found[group] = max(seq, found.get(group, seq))
        return found


@dataclass(frozen=True)
class LostDump:
    """A rank without readable calls; `reason` where there is a file that says nothing."""

    rank: int
    reason: str | None = None


@dataclass(frozen=True)
class Dumps:
    """What was left of a job: the calls of its ranks, and ranks that left none."""

    ranks: tuple[RankCalls, ...]
    lost: tuple[LostDump, ...] = ()
    problems: tuple[str, ...] = ()  # files that could not be read, in sentences

    @property
    def world_size(self) -> int:
        return len(self.ranks) + len(self.lost)

    def group_text(self, name: str) -> str:
        """`group 72, EXPERT_MODEL_PARALLEL_GROUP`."""
        about = self._descriptions.get(name)
        return f"group {name}, {about}" if about and name != DEFAULT_GROUP else f"group {name}"

    @cached_property
    def _descriptions(self) -> dict[str, str]:
        return {group.name: group.description for each in self.ranks for group in each.groups}

    @cached_property
    def by_rank(self) -> dict[int, RankCalls]:
        return {each.rank: each for each in self.ranks}

    @cached_property
    def members(self) -> dict[str, tuple[int, ...]]:
        """The ranks of each group: as told, else all for the default group, else its callers."""
        found: dict[str, set[int]] = {}
        told: dict[str, tuple[int, ...]] = {}
        for each in self.ranks:
            for group in each.groups:
                if group.members:
                    told.setdefault(group.name, group.members)
            for call in each.calls:
                found.setdefault(call.group, set()).add(each.rank)
        everyone = {*self.by_rank, *(lost.rank for lost in self.lost)}
        if DEFAULT_GROUP in found:
            found[DEFAULT_GROUP] = everyone
        return {name: tuple(sorted(ranks)) for name, ranks in found.items()} | told
