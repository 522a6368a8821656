"""What is known of each recorded run at a glance: from headers and ends, no record is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from ddpdoctor.errors import BadTraceFile
from ddpdoctor.events import FACTS_SUFFIX
from ddpdoctor.factsfile import read_end
from ddpdoctor.runfolders import attempts, rank_files
from ddpdoctor.terminal import Columns
from ddpdoctor.tracefile import Header, read_header

UNREADABLE: Final = "unreadable"
ENDED: Final = "ended"
FAILED: Final = "failed"  # a rank noted an error, or a status other than 0
OPEN: Final = "running or killed"  # of a file that was not closed, a header says no more
STOPPED: Final = "recording stopped"
LAUNCH_ALONE: Final = "no model recorded"  # only how the ranks joined


@dataclass(frozen=True)
class RunSummary:
    """A run in a list. What no header could tell is None."""

    run: str
    path: Path
    attempts: int
    ranks: int | None  # whose files are there
    world_size: int | None
    backend: str | None
    written: datetime  # last, in local time
    state: str


def summary(path: Path) -> RunSummary:
    """Of the run's newest attempt. Raises OSError where the folder cannot be read."""
    numbered = attempts(path)
    files = list(rank_files(numbered[-1])) if numbered else []
    headers = [header for header in map(_header, files) if header is not None]
    info = headers[0].run if headers else None
    return RunSummary(
        path.name,
        path,
        len(numbered),
        len(files) if info else None,
        info.world_size if info else None,
        info.backend if info else None,
        datetime.fromtimestamp(max(each.stat().st_mtime for each in (path, *files))).astimezone(),
        _state(headers, files) if numbered else LAUNCH_ALONE,
    )


def _header(path: Path) -> Header | None:
    try:
        return read_header(path)
    except (BadTraceFile, OSError):
        return None


def _state(headers: list[Header], files: list[Path]) -> str:
    if not headers:
        return UNREADABLE
    if any(_failed(file) for file in files):
        return FAILED
    if any(header.stopped for header in headers):
        return STOPPED
    return ENDED if all(header.closed for header in headers) else OPEN


def _failed(file: Path) -> bool:
    end = read_end(file.with_suffix(FACTS_SUFFIX))
    return end is not None and end.failed


def as_table(runs: Sequence[RunSummary]) -> Columns:
    rows = tuple(
        (
            str(run.path),
            f"{run.written:%Y-%m-%d %H:%M}",
            "?" if run.ranks is None else f"{run.ranks} of {run.world_size}",
            run.backend or "?",
            str(run.attempts),
            run.state,
        )
        for run in runs
    )
    names = ("run", "last written", "ranks", "backend", "attempts", "state")
    return Columns(names, rows, left=frozenset({"run", "backend", "state"}))


def to_json(runs: Sequence[RunSummary]) -> str:
    """A list of objects with the fields of RunSummary; times as ISO 8601."""
    return json.dumps([asdict(run) for run in runs], indent=2, default=_text)


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
