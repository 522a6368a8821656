"""How long the training thread was ready to run and had no CPU, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path


class RunQueue:
    """Reads the calling thread's schedstat; open it on the training thread itself."""

    def __init__(self) -> None:
        self._file = _open()

    def waited_ns(self) -> int:
        """Nanoseconds since the thread began; 0 on a kernel that does not count them."""
        if self._file is None:
            return 0
        fields = os.pread(self._file, 128, 0).split()
        return int(fields[1]) if len(fields) > 1 else 0

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open() -> int | None:
    path = Path("/proc/thread-self/schedstat")
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
