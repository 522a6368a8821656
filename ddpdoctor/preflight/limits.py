"""Limits of this process: open files, threads, locked memory, /dev/shm and the cgroup's."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ddpdoctor.cgroups import hierarchy_of
from ddpdoctor.launchfacts import UNLIMITED, Limits

_MAX_BYTES: Final = 64 * 1024


def limits(root: Path = Path("/")) -> Limits:
    """As the system tells them now. `root` holds /dev/shm, /proc and /sys."""
    total, free = _space(root / "dev/shm")
    return Limits(
        open_files=_resource(resource.RLIMIT_NOFILE),
        processes=_processes(root),
        locked_memory_bytes=_resource(resource.RLIMIT_MEMLOCK),
        shm_bytes=total,
        shm_free_bytes=free,
        memory_bytes=_least(root, "memory", ("memory.max", "memory.limit_in_bytes")),
        host_cpus=os.cpu_count(),
        cpu_quota=_cpu_quota(root),
    )


def _resource(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)


def _processes(root: Path) -> int:
    """Of the user, which does not bind root, and of the cgroup, which binds all."""
    of_user = UNLIMITED if os.getuid() == 0 else _resource(resource.RLIMIT_NPROC)
    return min(of_user, _least(root, "pids", ("pids.max",)) or UNLIMITED)


def _space(path: Path) -> tuple[int | None, int | None]:
    try:
        status = os.statvfs(path)
    except OSError:
        return None, None
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def _least(root: Path, controller: str, names: tuple[str, ...]) -> int | None:
    """The smallest value that this process's cgroup or one around it sets."""
    values = [
        min(int(text), UNLIMITED)
        for folder in _cgroups(root, controller)
        for name in names
        if (text := _read(folder / name)).isdecimal()
    ]
    return min(values, default=None)


def _cpu_quota(root: Path) -> float | None:
    found = []
    for folder in _cgroups(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not quota:
            quota = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup for a controller and of those around it."""
    hierarchy = hierarchy_of(controller, root / "proc/self")
    return hierarchy.up() if hierarchy is not None else iter(())


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""
