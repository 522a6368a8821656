"""The only reader of /proc. Processes that vanish, and entries one may not read, are normal: None.

The root is a parameter, so that tests can hand it a small tree of files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

IDENTITY_VARIABLES: Final = (  # nothing else of an environment is kept
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "XDG_RUNTIME_DIR",
    "TMPDIR",
)
_MAX_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True)
class Stat:
    """One line of /proc/PID/stat."""

    pid: int
    name: str
    state: str
    parent: int
    cpu_ticks: int
    start_ticks: int
    exit_code: int  # as of wait(2); 0 while the process lives, or where it may not be read


@dataclass(frozen=True)
class Counters:
    """What grows while a process does something."""

    cpu_s: float
    io_bytes: int | None
    main_thread_switches: int | None


class Processes:
    """The processes of this host as /proc shows them."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")

    def all(self) -> dict[int, Stat]:
        """Every process, by pid."""
        return {stat.pid: stat for pid in self._pids() if (stat := self.stat(pid)) is not None}

    def _pids(self) -> Iterator[int]:
        try:
            names = os.listdir(self._root)
        except OSError:
            return
        yield from (int(name) for name in names if name.isdigit())

    def folder(self, pid: int) -> Path:
        return self._root / str(pid)

    def stat(self, pid: int) -> Stat | None:
        line = self._read(pid, "stat")
        if line is None:
            return None
        head, _, tail = line.rpartition(")")
        fields = tail.split()
        try:
            return Stat(
                pid,
                head.partition("(")[2],
                fields[0],
                int(fields[1]),
                int(fields[11]) + int(fields[12]),
                int(fields[19]),
                int(fields[49]) if len(fields) > 49 else 0,
            )
        except (ValueError, IndexError):
            return None

    def identity(self, pid: int) -> dict[str, str] | None:
        """The allow-listed part of the environment that the process was started with."""
        return self.variables(pid, IDENTITY_VARIABLES)

    def variables(self, pid: int, names: Collection[str]) -> dict[str, str] | None:
        """These variables of the environment that the process was started with."""
        raw = self._read(pid, "environ")
        if raw is None:
            return None
        pairs = (entry.partition("=") for entry in raw.split("\0"))
        return {name: value for name, _, value in pairs if name in names}

    def command(self, pid: int) -> list[str]:
        return (self._read(pid, "cmdline") or "").rstrip("\0").split("\0")

    def has_torch(self, pid: int) -> bool:
        return "libtorch" in (self._read(pid, "maps") or "")

    def on_gpu(self, pid: int) -> bool:
        maps = self._read(pid, "maps") or ""
        return "libcuda.so" in maps or "/dev/nvidia" in maps

    def wchan(self, pid: int) -> str:
        return (self._read(pid, "wchan") or "").strip()

    def uid(self, pid: int) -> int | None:
        try:
            return (self._root / str(pid)).stat().st_uid
        except OSError:
            return None

    def counters(self, pid: int) -> Counters | None:
        stat = self.stat(pid)
        if stat is None:
            return None
        ran_ns = (self._read(pid, f"task/{pid}/schedstat") or "0").split()[0]
        cpu_s = max(stat.cpu_ticks / self._ticks_per_s, int(ran_ns) / 1e9)
        return Counters(cpu_s, self._io_bytes(pid), self._switches(pid))

    def _io_bytes(self, pid: int) -> int | None:
        values = self._fields(pid, "io")
        return values["rchar"] + values["wchar"] if {"rchar", "wchar"} <= values.keys() else None

    def _switches(self, pid: int) -> int | None:
        return self._fields(pid, f"task/{pid}/status").get("voluntary_ctxt_switches")

    def _fields(self, pid: int, entry: str) -> dict[str, int]:
        """The lines `name: number` of an entry."""
        lines = (line.partition(":") for line in (self._read(pid, entry) or "").splitlines())
        return {name: int(value) for name, _, value in lines if value.strip().isdigit()}

    def _read(self, pid: int, entry: str) -> str | None:
        try:
            with (self._root / str(pid) / entry).open("rb") as file:
                return file.read(_MAX_BYTES).decode(errors="replace")
        except OSError:
            return None
