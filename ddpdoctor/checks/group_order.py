"""DD911 group-order: two ranks use two process groups in opposite order.

What it measures
    For recorded ranks, and in dumps of torch's flight recorder, where each rank is in the order of
    each group: one rank waits in a group that the other has not come to, and the other waits in a
    group that the first has not come to. Or a group of one name has other members on some ranks
    than on others.

Why it matters
    Each waits for the other, for ever, while both are in a collective and every call by itself
    looks right.

What to do
    Use the groups in the same order on all ranks. Make groups by `new_group` on all ranks in the
    same order, too, and by members and others alike.

When it is wrong
    Groups are known by the name that torch gives them. If the ranks made them in different order,
    the same name may mean different groups; that is this fault as well, one step earlier. It shows
    only once ranks have used that group, and where these groups have not the same members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.checks import NotEnoughData, dump_check, hang_check, trace_check
from ddpdoctor.findings import Confidence, Finding, Severity
from ddpdoctor.hang import describe, describe_calls
from ddpdoctor.hang.joining import makes_group
from ddpdoctor.hang.order import Misnamed, crossed, misnamed
from ddpdoctor.hang.situation import Kind, Situation, numbers, situation
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.hang.standing import Standing
from ddpdoctor.wording import rank_list

if TYPE_CHECKING:  # a hang check loads no pandas
    from ddpdoctor.analysis.model import Analysis


@hang_check("DD911", "group-order")
def group_order(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    if scene.kind not in (Kind.SAME_CALL, Kind.DIFFERENT_CALLS):
        return
    if makes_group(snapshot):
        yield _in_new_group(snapshot, scene)
        return
    if sum(bool(rank.collectives) for rank in snapshot.ranks) < 2:
        raise NotEnoughData("the ranks are not recorded, so the order of their calls is not known")
    apart = misnamed(snapshot)
    if apart is not None:
        yield _made_by_some(snapshot, scene, apart)
        return
    found = crossed(snapshot)
    if found is None:
        return
    one, other = found.one, found.other
    culprits = tuple(seen for seen in scene.waiting if seen.number in found.ranks)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=(
            f"rank {one.waiting} waits for rank {one.rank} in {one.awaited.op} number "
            f"{one.awaited.seq} of group {one.awaited.group}, and rank {other.waiting} for rank "
            f"{other.rank} in {other.awaited.op} number {other.awaited.seq} of group "
            f"{other.awaited.group}: they use the two groups in opposite order"
        ),
        fix=_FIX,
        culprits=numbers(culprits),
        victims=describe.victims(scene, culprits),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *describe.records(scene.all),
            *describe.states(scene.all),
        ),
        where=describe.locations(culprits),
    )


def _in_new_group(snapshot: HangSnapshot, scene: Situation) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY if not snapshot.elsewhere else Confidence.POSSIBLE,
        message=(
            f"{describe.names(scene.waiting)} wait in {describe.calls(scene.waiting)} and the "
            "group does not come about: some ranks made a group before that others did not make"
        ),
        fix=f"{_ON_ALL} If they do, test the network between the members.",
        victims=numbers(scene.waiting),
        hosts=describe.hosts(snapshot),
        evidence=(describe.looks(snapshot), *describe.states(scene.all)),
        where=describe.locations(scene.waiting),
    )


def _made_by_some(snapshot: HangSnapshot, scene: Situation, apart: Misnamed) -> Finding:
    said = ", and ".join(
        f"{rank_list(members)} to {rank_list(ranks)}" for members, ranks in apart.told
    )
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"group {apart.group} is {said}: some ranks made a group that others did not make, and "
            "since then the same name means different groups"
        ),
        fix=_ON_ALL,
        victims=numbers(scene.all),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *describe.records(scene.all),
            *describe.states(scene.all),
        ),
        where=describe.locations(scene.waiting),
    )


_ON_ALL = (
    "Call new_group on all ranks, also on those that are no members, in the same order and with "
    "the same list of ranks."
)
_FIX = "Make the calls of both groups in the same order on all ranks; see the lines that are shown."


@dump_check("DD911", "group-order")
def group_order_in_dumps(scene: Standing) -> Iterator[Finding]:
    fronts = [(rank, scene.front(rank)) for rank in scene.circle]
    if not fronts or all(call is None or call.point_to_point for _, call in fronts):
        return  # DD904 speaks of sends that wait for each other
    parts = [
        f"rank {rank} waits for rank {following} in {describe_calls.text(scene, call)}"
        for (rank, call), following in zip(
            fronts, (*scene.circle[1:], scene.circle[0]), strict=True
        )
        if call is not None
    ]
    yield describe_calls.finding(
        scene,
        scene.circle,
        f"{'; '.join(parts[: describe_calls.MOST_TOLD])}: they use the groups in opposite order",
        _FIX,
    )


@trace_check("DD911", "group-order")
def group_order_in_record(run: Analysis) -> Iterator[Finding]:
    """The same in a record, by where its ranks noted that they stood still."""
    from ddpdoctor.lastlook import judged_by

    yield from judged_by(run, group_order)
