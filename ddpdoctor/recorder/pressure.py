"""What the kernel counts of waiting: for a CPU, for a CPU quota, for storage.

Where it does not count something, that part of a step is not measured. Reading one counter takes
one to three microseconds.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final, TypeVar

from ddpdoctor.cgroups import hierarchy_of, unified

_READ_BYTES: Final = 1024
_BLOCK_IO_DELAY: Final = 39  # field 42 of `stat`, counted behind the name in parentheses


class Counter:
    """One open file of the kernel with a counter in it. Make and close it on one thread."""

    def __init__(self, path: Path) -> None:
        self._last_ns = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self.counts = self._fd >= 0 and self._looked()

    def nanoseconds(self) -> int:
        """The counter; where it can no longer be read (a group that is gone), its last value."""
        self._looked()
        return self._last_ns

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _looked(self) -> bool:
        try:
            self._last_ns = self._parse(os.pread(self._fd, _READ_BYTES, 0))
        except (OSError, ValueError, IndexError):
            return False
        return True

    def _parse(self, raw: bytes) -> int:
        raise NotImplementedError


class RunQueue(Counter):
    """How long the thread that makes it was ready to run and had no CPU, quota included."""

    def __init__(self) -> None:
        super().__init__(Path("/proc/thread-self/schedstat"))

    def _parse(self, raw: bytes) -> int:
        return int(raw.split()[1])


class Throttled(Counter):
    """How long a CPU quota kept the threads of its group from running, added up over CPUs."""

    def _parse(self, raw: bytes) -> int:
        words = raw.split()
        values = dict(zip(words[::2], words[1::2], strict=False))
        if b"throttled_usec" in values:
            return int(values[b"throttled_usec"]) * 1000
        if b"throttled_time" in values:
            return int(values[b"throttled_time"])
        raise ValueError("no throttling is counted here")


class BlockIoDelay(Counter):
    """How long the thread that makes it waited for storage; the kernel counts ticks of 10 ms."""

    def __init__(self) -> None:
        super().__init__(Path(f"/proc/self/task/{threading.get_native_id()}/stat"))
        self.counts = self.counts and _delays_are_counted()

    def _parse(self, raw: bytes) -> int:
        ticks = int(raw.rpartition(b")")[2].split()[_BLOCK_IO_DELAY])
        return ticks * (10**9 // os.sysconf("SC_CLK_TCK"))


class Pressure(Counter):
    """How long at least one task of the group, or of the host, waited: for storage, or a CPU."""

    def _parse(self, raw: bytes) -> int:
        return int(raw.partition(b"\n")[0].rpartition(b"total=")[2]) * 1000


def throttled() -> Throttled | None:
    """None where no CPU quota holds this process."""
    group = _limited_group()
    if group is None:
        return None
    # the kernel need not add up the first over CPUs and groups, and it counts outer quotas too
    return _first(Throttled, group / "cpu.stat.local", group / "cpu.stat")


def knows_quotas() -> bool:
    """Whether it can be seen here if a CPU quota holds this process."""
    return hierarchy_of("cpu") is not None


def pressure(of: str) -> Pressure | None:
    """Of `io` or `cpu`, in this process's group, else on the host; None where it is not counted."""
    groups = unified()
    own = [groups.group / f"{of}.pressure"] if groups is not None else []
    return _first(Pressure, *own, Path(f"/proc/pressure/{of}"))


_AnyCounter = TypeVar("_AnyCounter", bound=Counter)


def _first(kind: type[_AnyCounter], *paths: Path) -> _AnyCounter | None:
    for path in paths:
        counter = kind(path)
        if counter.counts:
            return counter
        counter.close()
    return None


def _limited_group() -> Path | None:
    """The innermost group with a CPU quota among those around this process."""
    hierarchy = hierarchy_of("cpu")
    if hierarchy is None:
        return None
    limited = (group for group in hierarchy.up() if _has_quota(hierarchy.version, group))
    return next(limited, None)


def _has_quota(version: int, group: Path) -> bool:
    name, none = ("cpu.max", "max") if version == 2 else ("cpu.cfs_quota_us", "-1")
    try:
        return not (group / name).read_text(encoding="ascii").startswith(none)
    except OSError:  # the outermost group has none
        return False


def _delays_are_counted() -> bool:
    """The kernel's default is not to."""
    try:
        return Path("/proc/sys/kernel/task_delayacct").read_bytes().strip() == b"1"
    except OSError:
        return False
