"""The files by which recorded ranks tell other processes who they are; written by the recorder."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAX_BYTES: Final = 64 * 1024
_MAX_FILES: Final = 4096


@dataclass(frozen=True)
class Registration:
    """One rank as it registered itself. It may be long gone: compare the start time."""

    pid: int
    start_ticks: int
    rank: int
    world_size: int
    run_folder: str
    socket: Path  # where torch answers for this rank, if it does
    record: str  # the rank's file


def folders_of(uid: int, runtime_folder: str | None, temporary_folder: str | None) -> list[Path]:
    """Where a process of this user with these settings registers; those that are private to it."""
    folders = [Path(temporary_folder or "/tmp") / f"ddpdoctor-{uid}"]  # noqa: S108  checked below
    if runtime_folder:
        folders.append(Path(runtime_folder) / "ddpdoctor")
    return [folder for folder in folders if _is_private(folder, uid)]


def _is_private(folder: Path, uid: int) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return status.st_uid == uid and stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077


def read_registrations(folder: Path) -> Iterator[Registration]:
    """Every readable registration in a folder."""
    for path in sorted(folder.glob("[0-9]*.json"))[:_MAX_FILES]:
        try:
            with path.open("rb") as file:
                facts = json.loads(file.read(_MAX_BYTES))
            yield Registration(
                int(facts["pid"]),
                int(facts["start_time_ticks"]),
                int(facts["rank"]),
                int(facts["world_size"]),
                str(facts["run_folder"]),
                path.with_suffix(".sock"),
                _record(facts),
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _record(facts: dict[str, object]) -> str:
    """Ranks of an older ddpdoctor do not name it: theirs lies in the run folder."""
    if "record" in facts:
        return str(facts["record"])
    return f"{facts['run_folder']}/rank{int(str(facts['rank'])):05d}.ddt"
