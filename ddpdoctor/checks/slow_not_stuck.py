"""DD906 slow-not-stuck: the job makes progress, or the rank that all wait for is busy.

What it measures
    Between two or three looks: CPU time, bytes read and written, lines of the script, and whether
    a rank that waits in a collective was woken.

Why it matters
    A job that moves is not hung: stopping it would lose work. If ranks wait for one that computes,
    that one sets the pace.

What to do
    Nothing, if the job is only slow by nature; else record a run (`ddpdoctor run`) and read
    `ddpdoctor report`, which says where the time goes. If one rank works alone for long, mind the
    timeout of the process group.

When it is wrong
    A rank that spins in an endless loop is busy too. On GPUs a CPU may be busy only because it
    waits for the device; there only changing stacks count as progress.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.checks import hang_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.hang import describe
from ddpdoctor.hang.activity import Activity
from ddpdoctor.hang.pursuit import pursuit_of
from ddpdoctor.hang.situation import Kind, Seen, Situation, situation
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.hang.wrapping import unwrapped
from ddpdoctor.wording import data_size


@hang_check("DD906", "slow-not-stuck")
def slow_not_stuck(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    if scene.kind is not Kind.MOVES or unwrapped(snapshot):  # those that move may train alone
        return
    moving = tuple(seen for seen in scene.all if seen.moves)
    awaited = () if snapshot.ended else _awaited(scene)
    yield Finding(
        severity=Severity.INFO,
        confidence=Confidence.LIKELY if awaited else Confidence.CERTAIN,
        message=_message(snapshot, scene, moving, awaited),
        fix=_fix(awaited),
        victims=describe.victims(scene, moving) if awaited else (),
        hosts=describe.hosts(snapshot),
        evidence=tuple(_progress(seen) for seen in scene.all),
        where=describe.locations(awaited),
    )


def _awaited(scene: Situation) -> tuple[Seen, ...]:
    """Busy ranks for which all others stand still in a collective."""
    still = [seen for seen in scene.waiting if not seen.moves]
    busy = tuple(
        seen
        for seen in scene.elsewhere
        if seen.moves and seen.place.activity is not Activity.LEAVING
    )
    return busy if still and len(still) + len(busy) == len(scene.all) else ()


def _message(
    snapshot: HangSnapshot, scene: Situation, moving: tuple[Seen, ...], awaited: tuple[Seen, ...]
) -> str:
    if not moving:
        ended = len(snapshot.ended)
        return f"not a hang so far: the job is ending, {ended} of its ranks just did; look again"
    if awaited:
        still = [seen for seen in scene.waiting if seen not in awaited]
        return (
            f"not a hang so far: {describe.names(awaited)} {describe.verb(awaited, 'is', 'are')} "
            f"busy and {describe.doing(awaited[0], plural=len(awaited) > 1)}; "
            f"{describe.names(still)} "
            f"{describe.verb(still, 'waits', 'wait')} for it in {describe.calls(still)}"
        )
    return f"not a hang: {describe.names(moving)} {describe.verb(moving, 'makes', 'make')} progress"


def _progress(seen: Seen) -> Evidence:
    movement = seen.process.movement
    said = [f"{movement.cpu_share:.0%} CPU"]
    if movement.io_bytes:
        said.append(f"{movement.io_bytes / 1e6:.2g} MB read or written")
    if movement.socket_bytes:
        said.append(f"{data_size(movement.socket_bytes)} over TCP")
    if movement.path_changed or movement.stack_changed:
        said.append("its stack changed")
    elif movement.main_thread_woke:
        said.append(f"its main thread woke {movement.main_thread_woke} times")
    number = "rank ?" if seen.number is None else f"rank {seen.number}"
    return Evidence(number, f"{', '.join(said)} within {movement.watched_s:.1f} s")


def _fix(awaited: tuple[Seen, ...]) -> str:
    if not awaited:
        return "Let it run. Where the time goes: `ddpdoctor run ...`, then `ddpdoctor report`."
    pursuit = pursuit_of(awaited[0].process)
    if pursuit is not None:
        return (
            f"Let it finish: it is {pursuit.doing}. {pursuit.fix} Look again in a minute: if it is "
            f"still at {awaited[0].place.text}, it may be an endless loop."
        )
    return (
        "Let it finish, or share the work between the ranks. It must end within the timeout of the "
        "process group: `init_process_group(timeout=timedelta(hours=2))`. Look again in a minute: "
        f"if it is still at {awaited[0].place.text}, it may be an endless loop."
    )
