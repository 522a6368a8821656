"""What ranks in one line of the script told torch there: to whom they send, and as whom they join.

Only whole numbers of torch's own functions are known, and only of ranks that all stand in the same
call, where nothing else tells them apart.
"""

from __future__ import annotations

from collections import defaultdict

from ddpdoctor.hang.activity import Activity, place_of
from ddpdoctor.hang.situation import Kind, Seen, Situation, situation
from ddpdoctor.hang.snapshot import HangSnapshot, RankProcess

_ONE_SIDED = ("send", "recv")
_ROOTS = ("src", "group_src", "dst", "group_dst")


def decide(snapshot: HangSnapshot) -> bool:
    """Whether it is the arguments that may tell the ranks of this job apart."""
    scene = situation(snapshot)
    all_join = bool(scene.waiting) and not scene.elsewhere and _all_join(scene)
    return scene.kind is Kind.SAME_CALL or (scene.kind is Kind.DIFFERENT_CALLS and all_join)


def _all_join(scene: Situation) -> bool:
    return all(seen.place.activity is Activity.JOINING for seen in scene.waiting)


def joins_as(rank: RankProcess) -> int | None:
    """The number with which it calls init_process_group, else that of its environment."""
    told = dict(rank.arguments).get("rank")
    return rank.rank if told is None or not _joins(rank) else told


def _joins(rank: RankProcess) -> bool:
    """In a further group a rank has another number."""
    return place_of(rank).call == "init_process_group"


def world_size_told(snapshot: HangSnapshot) -> int | None:
    """The largest that a rank joins with, else that of the environment."""
    told = [
        size
        for rank in snapshot.ranks
        if (size := dict(rank.arguments).get("world_size")) and _joins(rank)
    ]
    return max(told, default=snapshot.job.world_size)


def roots(scene: Situation) -> dict[int, tuple[int, ...]]:
    """Ranks by the rank that they send to, or get from, if they do not all name the same one."""
    found: dict[int, list[int]] = defaultdict(list)
    for seen in scene.waiting:
        root = _root(seen)
        if root is None or seen.number is None:
            return {}
        found[root].append(seen.number)
    return {root: tuple(ranks) for root, ranks in sorted(found.items())} if len(found) > 1 else {}


def _root(seen: Seen) -> int | None:
    told = dict(seen.process.arguments)
    return next((told[name] for name in _ROOTS if name in told), None)


def all_on_one_side(scene: Situation) -> bool:
    """Whether all of them send, or all receive: then nobody is at the other end."""
    calls = {seen.place.call for seen in scene.waiting}
    return len(scene.waiting) > 1 and len(calls) == 1 and calls <= set(_ONE_SIDED)


def told_apart(snapshot: HangSnapshot) -> bool:
    """Whether ranks in the same line are in calls that do not belong together."""
    scene = situation(snapshot)
    if scene.kind is not Kind.SAME_CALL:
        return False
    return all_on_one_side(scene) or bool(roots(scene))
