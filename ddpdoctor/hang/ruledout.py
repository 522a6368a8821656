"""Why it is not another kind of hang, in a few words a kind: what the finding stands against."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.hang.activity import Activity
from ddpdoctor.hang.joining import awaits_others
from ddpdoctor.hang.situation import Situation, situation
from ddpdoctor.hang.snapshot import HangSnapshot


def ruled_out(snapshot: HangSnapshot) -> tuple[tuple[str, str], ...]:
    """Codes with the observation that speaks against each. Only what was looked at counts."""
    scene = situation(snapshot)
    if not scene.all:
        return ()
    return tuple(_against(snapshot, scene))


def _against(snapshot: HangSnapshot, scene: Situation) -> Iterator[tuple[str, str]]:
    if not snapshot.dead and not snapshot.elsewhere:
        yield "DD901", "every rank lives"
    if not any(seen.process.is_stopped for seen in scene.all):
        yield "DD910", "none is stopped"
    if scene.unreadable:
        return  # the rest is told by stacks
    if not any(seen.moves for seen in scene.all) and not snapshot.ended:
        yield "DD906", f"nothing moved within {snapshot.watched_s:.1f} s"
    if not any(seen.place.activity is Activity.LOADER for seen in scene.all):
        yield "DD907", "none waits for its loader"
    if not any(seen.holds_gil for seen in scene.all):
        yield "DD909", "none keeps the GIL in native code"
    if not scene.leavers():
        yield "DD902", "none is seen past a loop in which another waits"
    if not awaits_others(snapshot):
        yield "DD407", "all have joined"
