"""A thread that looks at the training thread now and then: which line, in which phase.

The counts are a second, independent witness beside the stamps of the hooks, and they name the line
of the user's code where a phase spends its time.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Final

from ddpdoctor.events import HotLine, Phase, Site
from ddpdoctor.recorder.callsite import CallSites, site_of
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.stalls import StallWatch
from ddpdoctor.recorder.switch import POLL_S

# Drawn anew each time, so as not to beat with the steps. A look takes the interpreter's lock and
# some 0.1 ms of CPU: often enough at first for a short run, then seldom enough for a long one.
INTERVAL_S: Final = (0.005, 0.035)
LATER_INTERVAL_S: Final = (0.05, 0.15)
LATER_S: Final = 20.0  # after the beginning
FLUSH_S: Final = 0.1  # at least between two writes of what the file gathers
LINES_KEPT: Final = 64
_WRITE_EVERY_S: Final = 10.0


class Sentinel:
    """Samples until `stop`; writes what it saw every ten seconds and at the end."""

    def __init__(  # noqa: PLR0913  what it looks at, and whom it tells
        self,
        phases: Phases,
        sites: CallSites,
        facts: FactsFile,
        guard: Guard,
        stalls: StallWatch,
        listen: Callable[[], None],
        flush: Callable[[], None],
    ) -> None:
        self._phases = phases
        self._sites = sites
        self._facts = facts
        self._guard = guard
        self._stalls = stalls
        self._listen = listen
        self._flush = flush
        self._seen: Counter[tuple[Phase, CodeType, int]] = Counter()
        self._site_of: dict[tuple[CodeType, int], Site] = {}
        self._random = random.Random(0)  # noqa: S311  its own: the user's generators stay untouched
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddpdoctor-sentinel", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=1.0)
        self._write()

    def _run(self) -> None:
        began = now = listened = flushed = written = time.monotonic()
        while not self._stop.wait(self._interval_s(now - began)):
            if not self._guard.active:
                break
            now = time.monotonic()
            if now - flushed >= FLUSH_S:
                flushed = now
                self._guard.run(self._flush)
            if now - listened >= POLL_S:
                listened = now
                self._guard.run(self._listen)
                self._guard.run(self._phases.parts.sample)
            if not self._phases.switch.on:
                self._guard.run(self._stalls.look_away)
                continue
            self._guard.run(self._sample)
            if now - written > _WRITE_EVERY_S:
                written = now
                self._guard.run(self._write)
        self._stalls.rest()

    def _interval_s(self, running_s: float) -> float:
        if not self._phases.switch.on:
            return POLL_S / 4
        often = running_s < LATER_S and not self._stalls.stands
        return self._random.uniform(*(INTERVAL_S if often else LATER_INTERVAL_S))

    def _sample(self) -> None:
        phase = self._phases.current
        frame = sys._current_frames().get(self._phases.thread)
        user = self._sites.user_frame(frame)
        self._stalls.look(phase, user)
        if user is None:
            return
        place = (user.f_code, user.f_lineno)
        self._seen[(phase, *place)] += 1
        if place not in self._site_of:
            self._site_of[place] = site_of(user)

    def _write(self) -> None:
        self._facts.hot_lines(
            [
                HotLine(phase, self._site_of[code, line], samples)
                for (phase, code, line), samples in self._seen.most_common(LINES_KEPT)
            ]
        )
