"""Completions that a thread of the backend has still to report to us.

Such a thread takes the interpreter's lock for it. A process group joins its threads when it goes,
with the lock held; so it must not go while one of them may still want the lock.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

# A callback that comes after the interpreter has begun to end aborts the process. gloo itself
# waits at exit for what is pending, up to its own timeout of 30 minutes.
_DRAIN_SECONDS: Final = 30 * 60.0
_LOOK_SECONDS: Final = 0.002  # between two looks at a thread, with the lock free for it to take
_IDLE_SECONDS: Final = 2.0  # for threads that are never seen at rest


class Pending:
    """What was issued and has not called back, by process group."""

    def __init__(self) -> None:
        self._groups: dict[int, object] = {}
        self._threads: set[int] = set()  # of the backend, that have called back

    def add(self, serial: int, group: object) -> None:
        self._groups[serial] = group

    def remove(self, serial: int) -> None:
        """It will not call back."""
        self._groups.pop(serial, None)

    def called_back(self, serial: int) -> None:
        """Called at the end of the callback, on the backend's thread."""
        self._threads.add(threading.get_native_id())
        self._groups.pop(serial, None)

    def wait(self, group: object | None = None, seconds: float = _DRAIN_SECONDS) -> bool:
        """Until all calls of a group, or all, have called back and no thread wants the lock.

        False where some have not in this time.
        """
        deadline = time.monotonic() + seconds
        while self._is_pending(group) and time.monotonic() < deadline:
            time.sleep(0.001)
        self._wait_for_rest()
        return not self._is_pending(group)

    def _is_pending(self, group: object | None) -> bool:
        waiting = tuple(self._groups.values())
        return bool(waiting) if group is None else any(each is group for each in waiting)

    def _wait_for_rest(self) -> None:
        """A thread that sleeps, and still sleeps after the lock was free, wants nothing."""
        deadline = time.monotonic() + _IDLE_SECONDS
        before = self._looks()
        while time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            now = self._looks()
            if now == before and all(look.startswith("S") for look in now):
                return
            before = now

    def _looks(self) -> list[str]:
        """State and context switches of each thread that still is, without those of Python.

        A collective that is complete at once calls back on the thread that issued it.
        """
        of_python = {thread.native_id for thread in threading.enumerate()}
        looks = [_look(thread) for thread in tuple(self._threads) if thread not in of_python]
        return [look for look in looks if look is not None]


def _look(thread: int) -> str | None:
    try:
        status = Path(f"/proc/self/task/{thread}/status").read_text(
            encoding="ascii", errors="replace"
        )
    except OSError:
        return None  # it has ended
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    switches = fields.get("voluntary_ctxt_switches"), fields.get("nonvoluntary_ctxt_switches")
    return f"{fields.get('State', '?')} {switches}"
