"""DD905 off-by-one-collective: one rank is one call ahead of the others since a certain call.

What it measures
    In torch's flight recorder, by dumps or as recorded ranks answer while they hang, the calls of a
    group one by one: operation, sizes, types and, in dumps, lines. From some number on, each call
    of one rank is the one that the others make with the next number.

Why it matters
    Calls pair up by their order, so that from there on each is paired with a wrong one: numbers are
    mixed without a word, and at the end one rank waits for a call that nobody makes.

What to do
    Make the call that is named on all ranks, or on none: look for `if rank == 0:` before it, an
    early return, a batch that one rank skips, or a loop with one step more.

When it is wrong
    With two ranks, or as many ahead as behind, a call too many on one is a call too few on the
    other: then no rank is named. Where the lines are not in the dump and all calls look alike, it
    cannot be seen; where one rank alone is in a call, it says `possible`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.checks import dump_check, hang_check
from ddpdoctor.findings import Confidence, Finding
from ddpdoctor.hang import describe_calls
from ddpdoctor.hang.agreement import Shift
from ddpdoctor.hang.situation import shift_told, situation
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.hang.standing import Standing
from ddpdoctor.wording import rank_list


@hang_check("DD905", "off-by-one-collective")
def off_by_one_collective(snapshot: HangSnapshot) -> Iterator[Finding]:
    """The same while the job hangs, by what recorded ranks answer."""
    shift = shift_told(snapshot)
    if shift and snapshot.told:
        told = _finding(snapshot.told, shift)
        yield describe_calls.while_it_hangs(told, snapshot, situation(snapshot).all)


@dump_check("DD905", "off-by-one-collective")
def off_by_one_collective_in_dumps(scene: Standing) -> Iterator[Finding]:
    if scene.shift:
        yield _finding(scene, scene.shift)


def _finding(scene: Standing, shift: Shift) -> Finding:
    extra, instead = shift.extra, shift.instead
    ahead, behind = rank_list(shift.ahead), rank_list(shift.behind)
    if instead is None:
        waits_in = describe_calls.text(scene, extra)
        message = f"{ahead} waits in {waits_in}, and {behind} never made a call with that number"
    else:
        message = (
            f"{ahead} {'are' if len(shift.ahead) > 1 else 'is'} one call ahead of {behind} since "
            f"number {extra.seq} of {scene.dumps.group_text(extra.group)}: {extra.name}, where "
            f"{behind} made {instead.name}"
        )
    return describe_calls.finding(
        scene,
        shift.culprits,
        message,
        f"Make {extra.name} on all ranks of the group or on none. No call may depend on the rank, "
        "its data or its loss alone.",
        Confidence.POSSIBLE if instead is None else Confidence.LIKELY,
        shown={shift.ahead[0]: extra, shift.behind[0]: instead},
    )
