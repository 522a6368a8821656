"""The recorder's own code inside the training fails open: one warning, recording off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
_now, _thread = time.perf_counter_ns, threading.get_ident


class Guard:
    """Runs hooks. The first error calls `on_failure` once and silences all of them.

    `cost_ns` is the time that hooks took on `thread`, the training thread, by which the recorder
    accounts for itself; on other threads the clock would mostly show waiting for the
    interpreter's lock.
    """

    def __init__(self, on_failure: Callable[[Exception], None]) -> None:
        self._on_failure = on_failure
        self.active = True
        self.cost_ns = 0
        self.thread = threading.get_ident()

    def run(self, hook: Callable[..., Result], *arguments: object) -> Result | None:
        """The hook's result, or None when recording is or goes off."""
        if not self.active:
            return None
        began = _now()
        try:
            return hook(*arguments)
        except Exception as error:  # noqa: BLE001  an error of ours must never reach the training
            if self.active:
                self.active = False
                self._on_failure(error)
            return None
        finally:
            if _thread() == self.thread:
                self.cost_ns += _now() - began
