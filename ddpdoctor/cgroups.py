"""The control groups of a process: where the files of a controller lie, of version 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc/self")


@dataclass(frozen=True)
class Hierarchy:
    """One mounted hierarchy: this process's group in it and where the hierarchy begins."""

    version: int
    root: Path
    group: Path

    def up(self) -> Iterator[Path]:
        """The group and those around it, as far as they are visible here."""
        yield self.group
        for folder in self.group.parents:
            if not folder.is_relative_to(self.root):
                return
            yield folder


@dataclass(frozen=True)
class MemoryKills:
    """How often the kernel has killed a process of a control group since memory ran out."""

    group: str
    kills: int


def hierarchy_of(controller: str, proc: Path = _PROC) -> Hierarchy | None:
    """Where a controller acts on this process: version 1's own hierarchy, else version 2."""
    mounts = _mounts(proc)
    for line in _lines(proc / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return _hierarchy(1, mounts.get(controller), path)
    return unified(proc)


def unified(proc: Path = _PROC) -> Hierarchy | None:
    """The hierarchy of version 2."""
    for line in _lines(proc / "cgroup"):
        if line.startswith("0::"):
            return _hierarchy(2, _mounts(proc).get(""), line[3:])
    return None


def _hierarchy(version: int, mount: tuple[Path, str] | None, path: str) -> Hierarchy | None:
    if mount is None:
        return None
    root, shown = mount
    inside = path.removeprefix(shown) if shown != "/" else path  # a container sees a part of it
    group = root / inside.strip("/")
    return Hierarchy(version, root, group if group.is_dir() else root)


def _mounts(proc: Path) -> dict[str, tuple[Path, str]]:
    """Mount point and the part of the hierarchy that it shows, by controller; "" is version 2."""
    found: dict[str, tuple[Path, str]] = {}
    for line in _lines(proc / "mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        _, _, _, shown, point, *_ = before.split(" ")
        if kind == "cgroup2":
            found.setdefault("", (Path(point), shown))
        elif kind == "cgroup":
            for controller in options.rpartition(" ")[2].split(","):
                found.setdefault(controller, (Path(point), shown))
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
