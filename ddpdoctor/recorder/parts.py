"""Parts of a step that lie across its phases: what they came to, read where a step may end.

The training thread reads what is cheap. What is dearer is sampled by the sentinel, so its share
of a step is exact to within one sample.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from ddpdoctor.events import Kind, Part
from ddpdoctor.recorder.pauses import Pauses
from ddpdoctor.recorder.pressure import (
    BlockIoDelay,
    RunQueue,
    knows_quotas,
    pressure,
    throttled,
)
from ddpdoctor.recorder.timers import AnyFile

_PART: Final = int(Kind.PART)  # cheaper than an enum
# Reading takes several microseconds: what shorter steps wait for a CPU is told of every so-many-th.
READ_EVERY_NS: Final = 5_000_000


class SoFar(NamedTuple):
    """Nanoseconds since some moment in the past; only differences mean anything."""

    run_queue: int
    gc: int
    throttled: int
    io: int
    io_pressure: int
    cpu_pressure: int


class Parts:
    """The counters of the thread that makes it, the training thread."""

    def __init__(self) -> None:
        self._run_queue = RunQueue()
        self._throttled = throttled()
        self._io = BlockIoDelay()
        self._io_pressure = pressure("io")
        self._cpu_pressure = pressure("cpu")
        self._pauses = Pauses()
        self._read_ns = 0
        self._waited = (0, 0)
        self._sampled = (0, 0, 0)
        self._lock = threading.Lock()  # between a sample and the end
        self.sample()

    def measured(self) -> tuple[Part, ...]:
        """What is known of each step; a part that is known and not recorded was 0."""
        known = {
            Part.RUN_QUEUE: self._run_queue.counts,
            Part.GC: True,
            Part.THROTTLED: self._throttled is not None or knows_quotas(),
            Part.IO: self._io.counts,
            Part.IO_PRESSURE: self._io_pressure is not None,
            Part.CPU_PRESSURE: self._cpu_pressure is not None,
        }
        return tuple(part for part, is_known in known.items() if is_known)

    def so_far(self, now_ns: int) -> SoFar:
        if now_ns - self._read_ns >= READ_EVERY_NS:
            self._read_ns = now_ns
            limited = self._throttled
            self._waited = (
                self._run_queue.nanoseconds(),
                limited.nanoseconds() if limited is not None else 0,
            )
        run_queue, held_back = self._waited
        return SoFar(run_queue, self._pauses.total_ns, held_back, *self._sampled)

    def sample(self) -> None:
        """Read the dearer counters; on any thread."""
        with self._lock:
            self._sampled = (
                self._io.nanoseconds() if self._io.counts else 0,
                self._io_pressure.nanoseconds() if self._io_pressure is not None else 0,
                self._cpu_pressure.nanoseconds() if self._cpu_pressure is not None else 0,
            )

    def write(  # noqa: PLR0913  what a step record holds
        self, file: AnyFile, step: int, sync: int, begin: SoFar, end: SoFar, begin_ns: int,
        end_ns: int,
    ) -> None:  # fmt: skip
        """Write what of a step is more than 0, and each long pause."""
        if end[1:] == begin[1:]:  # the run queue is in the step's own record
            return
        # A quota counts all threads of its group on all CPUs; this thread's share of it cannot be
        # more than it waited for a CPU.
        held = min(end.throttled - begin.throttled, end.run_queue - begin.run_queue)
        spent = (
            (Part.GC, end.gc - begin.gc),
            (Part.THROTTLED, held),
            (Part.IO, end.io - begin.io),
            (Part.IO_PRESSURE, end.io_pressure - begin.io_pressure),
            (Part.CPU_PRESSURE, end.cpu_pressure - begin.cpu_pressure),
        )
        for part, ns in spent:
            if ns > 0:
                file.add(_PART, part, 0, 0, step, sync, 0, 0, -1, 0, -1, begin_ns, 0, end_ns, ns)
        for pause in self._pauses.before(end_ns):
            if pause.begin_ns >= begin_ns:  # none from before the first step
                file.add(
                    _PART, Part.GC_PAUSE, 0, 0, step, sync, 0, 0, -1, 0, pause.generation,
                    pause.begin_ns, 0, pause.end_ns, pause.end_ns - pause.begin_ns,
                )  # fmt: skip

    def close(self) -> None:
        self._pauses.close()
        with self._lock:
            for counter in (
                self._run_queue, self._throttled, self._io, self._io_pressure, self._cpu_pressure,
            ):  # fmt: skip
                if counter is not None:
                    counter.close()
