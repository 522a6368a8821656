"""DD910 process-stopped: a rank's process is stopped by a signal or a debugger.

What it measures
    The state of each rank's process: T is stopped (SIGSTOP, Ctrl-Z, a batch system that suspends
    the job), t is held by a debugger.

Why it matters
    A stopped rank does nothing at all, and keeps its connections open, so that the others wait
    until the timeout of the process group.

What to do
    Let it go on with `kill -CONT PID`, or detach the debugger.

When it is wrong
    A process may be stopped for the moment in which another tool takes its stack; look again.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.checks import hang_check
from ddpdoctor.findings import Confidence, Finding, Severity
from ddpdoctor.hang import describe
from ddpdoctor.hang.situation import Kind, numbers, situation
from ddpdoctor.hang.snapshot import HangSnapshot


@hang_check("DD910", "process-stopped")
def process_stopped(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    if scene.kind is not Kind.RANK_STOPPED:
        return
    stopped = tuple(seen for seen in scene.all if seen.process.is_stopped)
    pids = " ".join(str(seen.process.pid) for seen in stopped)
    by = "a debugger" if stopped[0].process.state == "t" else "a signal"
    others = tuple(seen for seen in scene.all if seen not in stopped)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=f"{describe.names(stopped)} {describe.verb(stopped, 'is', 'are')} stopped by {by}",
        fix=f"Let it go on: `kill -CONT {pids}`, or detach the debugger that holds it.",
        culprits=numbers(stopped),
        victims=numbers(others),
        hosts=describe.hosts(snapshot),
        evidence=describe.states(scene.all),
        where=describe.locations(stopped),
    )
