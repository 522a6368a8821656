"""Pauses of the training thread for garbage collection, as Python itself announces them.

The callback runs wherever an allocation starts a collection, also while the recorder holds a lock
of its own. So it only counts and remembers; what it saw is written when a step is closed.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple

SHOWN_NS: Final = 1_000_000  # shorter pauses are only added up: in a timeline nobody would see them
_KEPT: Final = 1000  # pauses within a step; more only where no step ever ends
_now, _thread = time.monotonic_ns, threading.get_ident


class Pause(NamedTuple):
    begin_ns: int
    end_ns: int
    generation: int


class Pauses:
    """Counts from its making until `close`, collections that the calling thread runs."""

    def __init__(self) -> None:
        self.total_ns = 0
        self.thread = threading.get_ident()
        self.long: deque[Pause] = deque(maxlen=_KEPT)
        self._begin_ns = 0
        self._callback = self._collection  # one object: a bound method is a new one each time
        gc.callbacks.append(self._callback)

    def _collection(self, phase: str, info: dict[str, int]) -> None:
        if _thread() != self.thread:
            return
        now = _now()
        if phase == "start":
            self._begin_ns = now
        elif self._begin_ns:
            self.total_ns += now - self._begin_ns
            if now - self._begin_ns >= SHOWN_NS:
                self.long.append(Pause(self._begin_ns, now, info["generation"]))
            self._begin_ns = 0

    def before(self, end_ns: int) -> list[Pause]:
        """Take out the long pauses that began before this moment."""
        taken = []
        while self.long and self.long[0].begin_ns < end_ns:
            taken.append(self.long.popleft())
        return taken

    def close(self) -> None:
        with suppress(ValueError):  # somebody emptied the list
            gc.callbacks.remove(self._callback)
