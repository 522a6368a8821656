"""Recording on and off by the step. The training thread switches; the sentinel's thread listens.

No rank asks another: each follows the same schedule by its own count of synchronised backwards,
which is the same on all of them. What is told through the control file lies ahead by as many steps
as it takes every rank to hear of it; a rank that hears too late says so.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ddpdoctor.events import MAX_U32, PROGRESS
from ddpdoctor.factsfile import UNREADABLE
from ddpdoctor.regular import opened
from ddpdoctor.schedule import CONTROL_BYTES, FIRST_STEP, Schedule, Switch, read_control

POLL_S: Final = 1.0
_PACE_S: Final = 1.0  # at least so long is a stretch over which the pace of the steps is taken
_PACES: Final = 5  # stretches of which the fastest counts: an evaluation may lie in one
_MOST_NOTES: Final = 5  # on control files that cannot be used


class RecordingSwitch:
    """Whether the step under way is recorded. `turned` is called at each change."""

    def __init__(self, schedule: Schedule, turned: Callable[[Switch], None]) -> None:
        self.schedule = schedule
        self._turned = turned
        self._now = Switch(FIRST_STEP, on=True)
        self.on = True
        self.step_begins(FIRST_STEP)

    def look_ahead(self, sync: int) -> None:
        """What comes now belongs to this step unless the one before goes on: miss nothing of it."""
        if not self.on and self.schedule.at(sync).on:
            self.step_begins(sync)

    def step_begins(self, sync: int) -> None:
        wanted = self.schedule.at(sync)
        if (wanted.on, wanted.detail_every) != (self._now.on, self._now.detail_every):
            self._now = wanted
            self.on = wanted.on
            self._turned(Switch(sync, wanted.on, wanted.detail_every))


class ControlFile:
    """Hears what `ddpdoctor record` tells, and says in turn which step this rank is in."""

    def __init__(
        self,
        path: Path,
        switch: RecordingSwitch,
        step_now: Callable[[], int],
        publish: Callable[[bytes], None],
        note: Callable[[str], None],
    ) -> None:
        self._path = path
        self._switch = switch
        self._step_now = step_now
        self._publish = publish
        self._note = note
        self._notes_left = _MOST_NOTES
        self._seen: tuple[int, ...] = ()
        self._heard = 0  # checksum of the file that was taken in
        self._measured = (step_now(), time.monotonic())
        self._paces: deque[int] = deque(maxlen=_PACES)

    def poll(self) -> None:
        """To be called about once a second, from one thread."""
        try:
            status = os.stat(self._path)
        except OSError:  # the usual case: nobody told anything
            pass
        else:
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
            if seen != self._seen:
                self._seen = seen
                self._read()
        step = self._step_now()
        self._publish(PROGRESS.pack(step, self._pace_of(step), self._heard))

    def _read(self) -> None:
        try:
            raw = self._content()
            self._take(read_control(raw))
        except (OSError, *UNREADABLE) as error:
            if self._notes_left > 0:
                self._notes_left -= 1
                self._note(f"{self._path.name} is ignored: {str(error)[:200]}")
        else:
            self._heard = zlib.crc32(raw)

    def _content(self) -> bytes:
        """Only of whom the folder belongs to, or root: others may write in a shared folder."""
        with opened(self._path) as fd:
            owner = os.fstat(fd).st_uid
            if owner not in (0, self._path.parent.stat().st_uid):
                raise ValueError(f"it belongs to another user ({owner})")
            return os.pread(fd, CONTROL_BYTES + 1, 0)

    def _take(self, told: tuple[Switch, ...]) -> None:
        before = self._switch.schedule
        self._switch.schedule = before.amended(told)
        step = self._step_now()
        for switch in told:
            if switch.sync <= step and switch not in before.switches:
                state = "on" if switch.on else "off"
                self._note(
                    f"heard in step {step} that recording goes {state} with step {switch.sync}: "
                    "too late, so that other ranks recorded other steps meanwhile"
                )

    def _pace_of(self, step: int) -> int:
        """Microseconds a step at its fastest lately; 0 while that is not known."""
        then, at_s = self._measured
        now_s = time.monotonic()
        if step > then and now_s - at_s >= _PACE_S:
            if then > FIRST_STEP:  # else it holds what starting took
                self._paces.append(min(MAX_U32, max(1, int((now_s - at_s) * 1e6 / (step - then)))))
            self._measured = (step, now_s)
        return min(self._paces, default=0)
