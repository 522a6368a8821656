"""DD912 exit-hang: all ranks that are left are past their last line and do not end.

What it measures
    Main threads in destroy_process_group or in the interpreter's own clean-up, without progress,
    and the other threads of these processes that run the script's or a library's code.

Why it matters
    Training is done and saved, but the job keeps its machines until somebody ends it.

What to do
    Call destroy_process_group on all ranks after a last barrier. A thread that was not made a
    daemon keeps its process: end it first (loggers, prefetchers, progress bars).

When it is wrong
    Clean-up that takes longer than was watched, such as an upload of logs, looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.checks import hang_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.hang import describe
from ddpdoctor.hang.situation import Kind, Seen, numbers, situation
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.stackframes import Frame


@hang_check("DD912", "exit-hang")
def exit_hang(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    if scene.kind is not Kind.ENDING:
        return
    threads = [(seen, name, frame) for seen in scene.all for name, frame in _others(seen)]
    holding = f"; thread {threads[0][1]} is at {describe.spot(threads[0][2])}" if threads else ""
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY if threads else Confidence.POSSIBLE,
        message=(
            f"{describe.names(scene.all)} {describe.verb(scene.all, 'is', 'are')} past the "
            f"script's last line and {describe.verb(scene.all, 'does', 'do')} not end{holding}"
        ),
        fix=(
            "End the threads that the script or its logger started, or make them daemons "
            "(`Thread(..., daemon=True)`), and call `dist.destroy_process_group()` on all ranks "
            "after a last barrier."
        ),
        culprits=numbers(scene.all),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *(Evidence(f"thread {name}", describe.spot(frame)) for _, name, frame in threads),
            *describe.states(scene.all),
        ),
        where=tuple(
            Location(seen.number, frame.file, frame.line, frame.function)
            for seen, _, frame in threads
            if seen.number is not None
        ),
    )


def _others(seen: Seen) -> Iterator[tuple[str, Frame]]:
    """Threads beside the main one that are in code of the script or of a library."""
    for thread in seen.process.threads:
        frame = next((frame for frame in thread.frames if frame.is_script), None)
        if thread.os_thread_id != seen.process.pid and frame is not None:
            yield thread.name or str(thread.os_thread_id), frame
