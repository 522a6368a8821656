"""Who listens on a TCP port of this host, by /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ddpdoctor.launchfacts import PortHolder
from ddpdoctor.preflight.environment import command_line

_LISTENS: Final = "0A"
_MAX_BYTES: Final = 8 * 1024 * 1024
_COMMAND_SHOWN: Final = 120


def holder_of(port: int, root: Path = Path("/proc")) -> PortHolder | None:
    """The listener on a port; None where there is none."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port, root)}
    if not inodes:
        return None
    for pid in _pids(root):
        if _holds(root / str(pid) / "fd", inodes):
            return PortHolder(port, pid, _command(root / str(pid)))
    return PortHolder(port)


def foreign_holder_of(port: int, root: Path = Path("/proc")) -> PortHolder | None:
    """The listener on a port, unless it is this process or one that it comes from."""
    holder = holder_of(port, root)
    return None if holder is None or holder.pid in _lineage(os.getpid(), root) else holder


def _lineage(pid: int, root: Path) -> set[int]:
    """A process, the one that started it, and so on."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = _read(root / str(pid) / "stat").rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return found


def _listening(port: int, root: Path) -> Iterator[str]:
    for table in ("net/tcp", "net/tcp6"):
        for line in _read(root / table).splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != _LISTENS:
                continue
            if int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _pids(root: Path) -> list[int]:
    return sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdigit())


def _holds(folder: Path, inodes: set[str]) -> bool:
    try:
        entries = os.listdir(folder)
    except OSError:
        return False
    for entry in entries:
        try:
            if os.readlink(folder / entry) in inodes:
                return True
        except OSError:
            continue
    return False


def _command(process: Path) -> str | None:
    arguments = _read(process / "cmdline").rstrip("\0").split("\0")
    return " ".join(command_line(arguments))[:_COMMAND_SHOWN] or None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
