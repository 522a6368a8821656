"""DD907 input-stalled: a rank waits for its DataLoader, and the others for that rank.

What it measures
    Ranks whose main thread is in torch's DataLoader, and the stacks of their worker processes:
    which worker is in the dataset's code, and at which line.

Why it matters
    The other ranks show a stalled collective, and the waiting rank shows torch's own queue. The
    cause is in a third place: the worker.

What to do
    A worker that hangs in fork needs another start method. Else look at its line: a file system
    that does not answer, a lock or a database handle copied by fork (open it in the worker), a
    download without a timeout. `num_workers=0` shows the error in the training process itself.

When it is wrong
    A batch that takes longer than was watched looks the same. Workers that all wait for their
    next index point to the loader's pin-memory thread or a lost message, and no line is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.checks import hang_check, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.hang import describe
from ddpdoctor.hang.activity import Activity
from ddpdoctor.hang.situation import Kind, Seen, Situation, numbers, situation
from ddpdoctor.hang.snapshot import HangSnapshot, LoaderWorker
from ddpdoctor.stackframes import Frame

if TYPE_CHECKING:  # a hang check loads no pandas
    from ddpdoctor.analysis.model import Analysis


@hang_check("DD907", "input-stalled")
def input_stalled(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    stalled = _stalled(scene)
    if not stalled:
        return
    first = stalled[0]
    worker = _guilty(first)
    frame = _dataset_frame(first, worker)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY if frame or worker else Confidence.POSSIBLE,
        message=_message(stalled, scene, worker, frame),
        fix=_fix(worker, frame),
        culprits=numbers(stalled),
        victims=describe.victims(scene, stalled),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *(_worker_evidence(each) for each in first.process.workers),
            *describe.memory_kills(snapshot),
            *describe.records(scene.all),
            *describe.states(scene.all),
        ),
        where=_where(stalled, frame),
    )


def _stalled(scene: Situation) -> tuple[Seen, ...]:
    in_loader = tuple(s for s in scene.elsewhere if s.place.activity is Activity.LOADER)
    if scene.kind is Kind.HELD_UP:
        left = scene.leavers()
        return tuple(seen for seen in in_loader if seen not in left)
    all_of_them = scene.kind is Kind.NOBODY_WAITS and len(in_loader) == len(scene.elsewhere)
    return in_loader if all_of_them else ()


def _guilty(seen: Seen) -> LoaderWorker | None:
    """The worker that is dead, stopped or within the dataset; the others wait for an index."""
    for worker in seen.process.workers:
        in_dataset = _script_frame(worker) is not None
        if worker.state in ("Z", "T", "t") or worker.is_in_fork or in_dataset:
            return worker
    return None


def _script_frame(worker: LoaderWorker | None) -> Frame | None:
    frames = worker.stack.frames if worker and worker.stack else ()
    users = [frame for frame in frames if frame.is_user]
    return next(iter(users), None) or next((f for f in frames if f.is_script), None)


def _dataset_frame(seen: Seen, worker: LoaderWorker | None) -> Frame | None:
    """The line in the dataset: of the worker, or of the rank itself without workers."""
    if worker is not None:
        return _script_frame(worker)
    thread = seen.process.main_thread
    innermost = thread.frames[0] if thread and thread.frames else None
    return seen.place.frame if innermost is not None and innermost.is_script else None


def _message(
    stalled: tuple[Seen, ...], scene: Situation, worker: LoaderWorker | None, frame: Frame | None
) -> str:
    who = f"{describe.names(stalled)} {describe.verb(stalled, 'waits', 'wait')} for a batch at "
    message = who + stalled[0].place.text
    if worker is not None:
        state = {"Z": " is dead", "T": " is stopped", "t": " is stopped"}.get(worker.state, "")
        if worker.is_in_fork:
            state = " hangs in fork, since a thread held a lock when it was forked"
        message += f": DataLoader worker pid {worker.pid}{state}"
    if frame is not None:
        message += f"{'' if worker else ':'} stands at {describe.spot(frame)}"
    if scene.waiting:
        waiting = describe.names(scene.waiting)
        verb = describe.verb(scene.waiting, "waits", "wait")
        message += f"; {waiting} {verb} in {describe.calls(scene.waiting)}"
    return message


def _worker_evidence(worker: LoaderWorker) -> Evidence:
    frame = _script_frame(worker)
    idle = "has not come out of fork" if worker.is_in_fork else "waits for its next index"
    doing = describe.spot(frame) if frame else idle
    return Evidence(f"worker pid {worker.pid}", f"state {worker.state}, {doing}")


def _where(stalled: tuple[Seen, ...], frame: Frame | None) -> tuple[Location, ...]:
    rank = stalled[0].number
    if frame is None or rank is None:
        return describe.locations(stalled)
    first = Location(rank, frame.file, frame.line, frame.function)
    return (first, *describe.locations(stalled[1:]))


def _fix(worker: LoaderWorker | None, frame: Frame | None) -> str:
    if worker is not None and worker.is_in_fork:
        return (
            "Do not fork a process that has threads: `DataLoader(..., "
            'multiprocessing_context="forkserver")`, and persistent_workers=True so that workers '
            "are started once."
        )
    if worker is not None and worker.state == "Z":
        return (
            "A worker died: mostly memory or /dev/shm (`df -h /dev/shm`; docker run "
            "--shm-size=8g). Fewer workers need less."
        )
    if frame is not None:
        return (
            f"See what {frame.file.rsplit('/', 1)[-1]}:{frame.line} waits for. Give reads and "
            "downloads a timeout, and open files and databases in the worker, not before it is "
            "forked. "
            "`DataLoader(..., timeout=120)` turns the hang into an error."
        )
    return (
        "No worker shows a line of the dataset. Try num_workers=0, which shows the error in the "
        "training process, and `DataLoader(..., timeout=120)`, which ends the hang with one."
    )


@trace_check("DD907", "input-stalled")
def input_stalled_in_record(run: Analysis) -> Iterator[Finding]:
    """The same in a record, by where its ranks noted that they stood still."""
    from ddpdoctor.lastlook import judged_by

    yield from judged_by(run, input_stalled)
