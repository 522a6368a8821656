"""The recorder's own code inside the training fails open: one warning, recording off."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Final, TypeVar

Result = TypeVar("Result")
_OURS: Final = str(Path(__file__).resolve().parent.parent)
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
        except Exception as error:  # an error of ours must never reach the training
            if _of_a_signals_handler(error):
                raise  # the script's own way out, as KeyboardInterrupt is
            if self.active:
                self.active = False
                self._on_failure(error)
            return None
        finally:
            if _thread() == self.thread:
                self.cost_ns += _now() - began


def none_if_it_fails(call: Callable[..., Result], *arguments: object) -> Result | None:
    """Ask an object of the user's; whatever it raises means "not known", and recording goes on."""
    try:
        return call(*arguments)
    except Exception as error:
        if _of_a_signals_handler(error):
            raise
        return None


def _of_a_signals_handler(error: Exception) -> bool:
    """Whether a handler of the script's raised it, while one of our hooks happened to run.

    Python calls a handler with the number and the frame that it interrupts, which is the one before
    it in the traceback.
    """
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(
        not frame.f_code.co_filename.startswith(_OURS) and _was_given(frame, interrupted)
        for interrupted, frame in pairwise(frames)
    )


def _was_given(frame: FrameType, interrupted: FrameType) -> bool:
    code, values = frame.f_code, frame.f_locals
    last = code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS) * (
        code.co_kwonlyargcount + 1
    )
    given: list[object] = []
    for name in code.co_varnames[:last]:
        value = values.get(name)
        given += value if isinstance(value, tuple) else [value]
    return any(value is interrupted for value in given)
