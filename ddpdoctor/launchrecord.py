"""Notes of processes that called init_process_group and record no model: who was to meet whom.

Each process keeps one small file in the folder `launch` of its run, from the call on until its
record says more. What is left tells of a launch that failed, of one that hangs, and of ranks that
train without a model to record.
"""

from __future__ import annotations

import re
import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ddpdoctor.launchfacts import (
    MOST_BYTES,
    LaunchFacts,
    Outcome,
    Process,
    Reach,
    Rendezvous,
)
from ddpdoctor.processfacts import decoded
from ddpdoctor.regular import read_up_to

FOLDER: Final = "launch"  # beside the attempts of a run
_NAME: Final = re.compile(r"([0-9]{1,6})-[A-Za-z0-9_.-]{1,255}-[0-9]{1,10}\.json")
_MOST_NOTES: Final = 4096
_NO_NAME: Final = re.compile(  # as torch and the resolver say it
    r"(?i)gai error|getaddrinfo|name or service not known|name resolution|no address associated"
)
_TAKEN: Final = re.compile(r"(?i)EADDRINUSE|address already in use")


@dataclass(frozen=True)
class RecordedLaunch:
    """The calls of one launch, those that were to meet together. `unreadable` counts files."""

    name: str
    meetings: tuple[LaunchFacts, ...]
    unreadable: int = 0


def note_path(run: Path, process: Process) -> Path:
    """Where a process keeps its note: its life under torchrun, its host and its number."""
    life = process.environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    number = life if life.isascii() and life.isdecimal() and len(life) < 7 else "0"
    return run / FOLDER / f"{number}-{_in_a_name(process.host)}-{process.pid}.json"


def _in_a_name(host: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", host)[:255] or "host"


def has_notes(run: Path) -> bool:
    """Whether a launch left notes there. Raises OSError."""
    return any(_NAME.fullmatch(path.name) for path in (run / FOLDER).glob("*.json"))


def forget_notes(run: Path, host: str) -> None:
    """Where a user gives several launches one name: take away what the last left on this host."""
    name = _in_a_name(host)
    with suppress(OSError):
        for path in (run / FOLDER).glob(f"*-{name}-*.json"):
            if _NAME.fullmatch(path.name):
                path.unlink()


def read_launch(run: Path) -> RecordedLaunch:
    """The notes of the newest life of a launch; those that cannot be read are counted."""
    found: dict[int, list[Process]] = defaultdict(list)
    unreadable = 0
    for path in sorted((run / FOLDER).glob("*.json"))[:_MOST_NOTES]:
        name = _NAME.fullmatch(path.name)
        if name is None:
            continue
        process = _read(path)
        if process is None:
            unreadable += 1
        else:
            found[int(name[1])].append(process)
    newest = found[max(found)] if found else []
    return RecordedLaunch(run.name, tuple(_meetings(newest)), unreadable)


def _read(path: Path) -> Process | None:
    try:
        process = decoded(read_up_to(path, MOST_BYTES + 1))
    except OSError:
        return None
    return _as_it_is(process) if process is not None and process.joining is not None else None


def _as_it_is(process: Process) -> Process:
    """A process of this host that is gone does not wait any more."""
    call = process.joining
    if call is None or call.outcome is not Outcome.WAITS or process.host != socket.gethostname():
        return process
    if Path(f"/proc/{process.pid}").exists():
        return process
    return replace(process, joining=replace(call, outcome=Outcome.ENDED))


def _meetings(processes: Iterable[Process]) -> Iterator[LaunchFacts]:
    """Those that were to meet at one place, together."""
    places: dict[str, list[Process]] = defaultdict(list)
    for process in processes:
        if process.joining is not None:
            places[process.joining.place].append(process)
    for place, there in sorted(places.items()):
        yield _facts(place, sorted(_not_over(there), key=_order))


def _order(process: Process) -> tuple[int, int]:
    return (-1 if process.rank is None else process.rank, process.pid)


def _not_over(processes: Sequence[Process]) -> list[Process]:
    """Without those that had come back before another process took their rank."""
    latest: dict[int | None, float] = {}
    for process in processes:
        began_s = process.joining.began_s if process.joining else 0.0
        latest[process.rank] = max(began_s, latest.get(process.rank, began_s))
    return [
        process
        for process in processes
        if process.joining and not process.joining.is_over_at(latest[process.rank])
    ]


def _facts(place: str, processes: list[Process]) -> LaunchFacts:
    sizes = [process.world_size for process in processes if process.world_size]
    host, _, port = place.rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else 0
    calls = [process.joining for process in processes if process.joining]
    holder = next((call.holder for call in calls if call.holder is not None), None)
    took = [call.seconds or call.waited_s for call in calls if call.outcome is not Outcome.JOINED]
    return LaunchFacts(
        tuple(processes),
        max(sizes, default=None),
        Rendezvous(
            host if number else place,
            number,
            _reach(processes),
            holder=holder,
            waited_s=max(took, default=0.0),
        ),
    )


def _reach(processes: Sequence[Process]) -> Reach:
    calls = [process.joining for process in processes if process.joining]
    if all(call.outcome is Outcome.JOINED for call in calls):
        return Reach.REACHED
    said = " ".join(call.message for call in calls if call.outcome is Outcome.FAILED)
    if any(call.holder is not None for call in calls) or _TAKEN.search(said):
        return Reach.TAKEN
    if _NO_NAME.search(said):
        return Reach.NO_NAME
    return Reach.REACHED
