"""DD909 gil-held: native code of a rank keeps Python's lock and does not return.

What it measures
    The thread that owns the GIL in a rank which the others wait for, while that rank does nothing.

Why it matters
    No other Python thread of this rank can run: no timeout of Python's, no logging, no heartbeat.

What to do
    The line shown calls into a C extension that waits without releasing the GIL: give that call
    a timeout, run it in a process of its own, or upgrade the library.

When it is wrong
    A long computation in C that keeps the GIL is busy and reported as DD906 instead. The owner
    is read without stopping the process, so it may be a moment old.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.checks import hang_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.hang import describe
from ddpdoctor.hang.activity import Activity
from ddpdoctor.hang.situation import Kind, Seen, numbers, situation
from ddpdoctor.hang.snapshot import HangSnapshot


@hang_check("DD909", "gil-held")
def gil_held(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    if scene.kind is not Kind.HELD_UP:
        return
    left = scene.leavers()
    holders = tuple(
        seen
        for seen in scene.elsewhere
        if seen.holds_gil and seen not in left and seen.place.activity is not Activity.LOADER
    )
    if not holders:
        return
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"{describe.names(holders)} {describe.doing(holders[0], plural=len(holders) > 1)}, in "
            f"native code that keeps the GIL and does not return{_in_c(holders[0])}; "
            f"{describe.names(scene.waiting)} "
            f"{describe.verb(scene.waiting, 'waits', 'wait')} in {describe.calls(scene.waiting)}"
        ),
        fix=(
            f"See what the native call at {holders[0].place.text} waits for; give it a timeout, or "
            "run it in a process of its own. Native code that may wait must give the GIL back: "
            "ctypes.CDLL does and PyDLL does not; pybind11: py::gil_scoped_release."
            + ("" if holders[0].process.native else _NATIVE.format(holders[0].process.pid))
        ),
        culprits=numbers(holders),
        victims=describe.victims(scene, holders),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *_native(holders),
            *describe.records(scene.all),
            *describe.states(scene.all),
        ),
        where=describe.locations(holders),
    )


_NATIVE = " `py-spy dump --native --pid {}` names the C function."


def _in_c(seen: Seen) -> str:
    native = seen.process.native
    return f", {native[0]}" if native else ""


def _native(holders: tuple[Seen, ...]) -> Iterator[Evidence]:
    for seen in holders:
        if seen.process.native:
            yield Evidence(f"rank {seen.number}, in C", " < ".join(seen.process.native))
