"""Stacks that are written in C, where Python cannot: at SIGTERM and SIGHUP, where its lock is kept.

All by `faulthandler.register`, whose handlers need no lock of Python's. Those for the two go on
to whatever handled the signal before, so that the process ends as without us; the script may set
its own handler before or later. The third is run by a timer that the sentinel puts off each second:
the signal goes to the sentinel's thread alone and interrupts no call of the training. Unlike
`faulthandler.dump_traceback_later`, of which there is one per process, it is nobody else's.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

from ddpdoctor.laststacks import hangup_file, read_last_stacks
from ddpdoctor.recorder.facts import FactsFile

SILENCE_S: Final = 20  # that the sentinel must not have run; a slow machine stays far below
PUT_OFF_EVERY_S: Final = 1.0
_SIGEV_THREAD_ID: Final = 4


class _SigEvent(ctypes.Structure):
    """`struct sigevent` of Linux, 64 bit."""

    _fields_ = (
        ("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
        ("thread", ctypes.c_int), ("rest", ctypes.c_int * 11),
    )  # fmt: skip


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec`: interval and time left, each in seconds and nanoseconds."""

    _fields_ = (("interval", ctypes.c_long * 2), ("left", ctypes.c_long * 2))


class Backup:
    """The files of this rank's last stacks. `close` removes them where nothing stands in them."""

    def __init__(self, path: Path, facts: FactsFile) -> None:
        self._path = path
        self._facts = facts
        self._fd = _new_file(path)
        hangup = hangup_file(path)
        self._ends = (
            _AtSignal(signal.SIGTERM, path, self._fd),
            _AtSignal(signal.SIGHUP, hangup, _new_file(hangup)),
        )
        self._timer: _Timer | None = None
        self._put_off_at = -math.inf
        os.register_at_fork(after_in_child=self._leave_signals)

    def put_off(self) -> None:
        """Called by the sentinel's thread: Python runs, so that the timer may start anew."""
        now = time.monotonic()
        since_s, is_first = now - self._put_off_at, self._put_off_at < 0
        if since_s < PUT_OFF_EVERY_S:
            return
        if is_first:
            self._timer = _Timer.for_this_thread(self._fd)
        elif since_s > SILENCE_S:
            self._went_on(since_s)
        self._put_off_at = now
        if self._timer is not None:
            self._timer.start(SILENCE_S)

    def _went_on(self, silence_s: float) -> None:
        """Python runs again: what was written becomes a sentence, and the file is empty."""
        seen = read_last_stacks(self._path)
        if seen.at_sigterm is not None or not seen.stuck:
            return
        os.ftruncate(self._fd, 0)
        (first, *_) = seen.stuck[-1]
        place = f"{first.file.rsplit('/', 1)[-1]}:{first.line} in {first.function}"
        self._facts.note(f"Python could not run for {silence_s:.0f} s, at {place}")

    def rest(self) -> None:
        """The sentinel ends, so that the timer must not take it for silenced."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.end()

    def close(self) -> None:
        self.rest()
        self._leave_signals()
        for each in self._ends:
            each.remove_if_empty()

    def _leave_signals(self) -> None:
        for each in self._ends:
            each.leave()


class _AtSignal:
    """Has the main thread's stack written to a file when a signal comes that ends a process."""

    def __init__(self, number: signal.Signals, path: Path, fd: int) -> None:
        self._number = number
        self._path = path
        self._fd = fd
        self._handled_before = signal.getsignal(number)
        self._is_ours = _is_free(number)
        if self._is_ours:
            faulthandler.register(number, fd, all_threads=False, chain=True)

    def leave(self) -> None:
        """Put back what handled the signal, unless the script has set something else since."""
        if self._is_ours and signal.getsignal(self._number) == self._handled_before:
            faulthandler.unregister(self._number)
        self._is_ours = False

    def remove_if_empty(self) -> None:
        if os.fstat(self._fd).st_size == 0:
            self._path.unlink(missing_ok=True)


def _new_file(path: Path) -> int:
    """Never closed: a signal that is under way would write to whatever got its number next."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    return os.open(path, flags, 0o644)


class _Timer:
    """Once it runs out, a thread's handler writes the stacks of all threads to a file."""

    def __init__(self, libc: ctypes.CDLL, number: int, timer: ctypes.c_void_p) -> None:
        self._libc = libc
        self._signal = number
        self._timer = timer

    @classmethod
    def for_this_thread(cls, fd: int) -> _Timer | None:
        """None where no signal is free, or the system has no such timers."""
        number = next(filter(_is_free, range(signal.SIGRTMAX, signal.SIGRTMIN, -1)), None)
        libc = ctypes.CDLL(None, use_errno=True)
        if number is None or not hasattr(libc, "timer_create"):
            return None
        event = _SigEvent(0, number, _SIGEV_THREAD_ID, threading.get_native_id())
        timer = ctypes.c_void_p()
        faulthandler.register(number, fd, all_threads=True)
        if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
            faulthandler.unregister(number)
            return None
        return cls(libc, number, timer)

    def start(self, seconds: int) -> None:
        spec = _TimerSpec((0, 0), (seconds, 0))
        self._libc.timer_settime(self._timer, 0, ctypes.byref(spec), None)

    def end(self) -> None:
        """The signal's handler stays: it would kill the process to come without one."""
        self._libc.timer_delete(self._timer)


def _is_free(number: int) -> bool:
    """Whether nobody but Python's own `signal` module handles, ignores or blocks a signal."""
    bit = 1 << (number - 1)
    masks = [_signal_mask(name) & bit for name in ("SigCgt", "SigIgn", "SigBlk")]
    caught, ignored, blocked = masks
    if number in (signal.SIGTERM, signal.SIGHUP):
        by_python = callable(signal.getsignal(number))
        return not ignored and not blocked and (not caught or by_python)
    return not any(masks)


def _signal_mask(name: str) -> int:
    for line in Path("/proc/thread-self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1], 16)
    return 0
