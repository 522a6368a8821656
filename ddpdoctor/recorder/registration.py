"""A file that tells other processes of this user which rank this process is."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700


def registration_folder() -> Path:
    """`$XDG_RUNTIME_DIR/ddpdoctor`, or a folder of this user below the temporary one.

    Raises PermissionError when the folder belongs to somebody else or is open to others.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    usable = runtime and os.access(runtime, os.W_OK | os.X_OK)
    folder = (
        Path(str(runtime)) / "ddpdoctor"
        if usable
        else Path(tempfile.gettempdir()) / f"ddpdoctor-{os.getuid()}"
    )
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a private folder of this user")
    return folder


def register(rank: int, world_size: int, run_folder: Path, record: Path) -> Path:
    """Write `<pid>.json` and return its path; the process removes it when it ends well.

    `record` is the rank's file, which may lie outside the run folder while it is written.
    """
    path = registration_folder() / f"{os.getpid()}.json"
    facts = {
        "pid": os.getpid(),
        "start_time_ticks": start_time_ticks(os.getpid()),
        "rank": rank,
        "world_size": world_size,
        "run_folder": str(run_folder.absolute()),
        "record": str(record.absolute()),
    }
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(facts), encoding="utf-8")
    unfinished.replace(path)
    return path


def start_time_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot: with the pid it names one process."""
    stat_line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat_line.rpartition(")")[2].split()[19])
