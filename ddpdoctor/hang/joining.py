"""Jobs whose ranks, or whose launcher, stand where all of them should meet."""

from __future__ import annotations

from dataclasses import dataclass

from ddpdoctor.hang.activity import Activity
from ddpdoctor.hang.arguments import joins_as, world_size_told
from ddpdoctor.hang.situation import Kind, Seen, situation
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.launchfacts import MOST_RANKS

_MAKES_GROUP = "new_group"


@dataclass(frozen=True)
class Joining:
    """Ranks of this host that stand in init_process_group, and those that are not here."""

    ranks: tuple[Seen, ...]
    missing: tuple[int, ...]


def makes_group(snapshot: HangSnapshot) -> bool:
    """Whether all ranks stand still in making a further group, which is DD911's."""
    scene = situation(snapshot)
    still = scene.kind in (Kind.SAME_CALL, Kind.DIFFERENT_CALLS)
    return still and all(seen.place.call == _MAKES_GROUP for seen in scene.waiting)


def awaits_others(snapshot: HangSnapshot) -> bool:
    """Whether all of its ranks that live here wait for ranks that do not, or at other places."""
    stuck = joining(snapshot)
    return stuck is not None and bool(stuck.missing or snapshot.job.masters)


def joining(snapshot: HangSnapshot) -> Joining | None:
    """None unless every rank of the job that lives here waits for the others to join."""
    scene = situation(snapshot)
    size = world_size_told(snapshot)
    if scene.kind not in (Kind.SAME_CALL, Kind.DIFFERENT_CALLS):
        return None
    if any(seen.place.activity is not Activity.JOINING for seen in scene.waiting):
        return None
    if makes_group(snapshot):
        return None
    if size is None or size > MOST_RANKS:
        return None
    present = {joins_as(seen.process) for seen in scene.waiting}
    missing = tuple(rank for rank in range(size) if rank not in present)
    return Joining(scene.waiting, missing)
