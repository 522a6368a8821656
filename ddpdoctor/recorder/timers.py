"""Times of the GPU: where the device's stream was when the host issued something.

A host that enqueues work is ahead of the device, so on CUDA its stamps say little. There each
mark is a host stamp and an event on the current stream. Events are only asked whether they are
done, at the end of a step on the training thread: never waited for, never from another thread, and
none is recorded while a graph is captured. What is done is written over the host's times.

Where the model is on the host, none of this is constructed, and records go to the file itself.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import torch

from ddpdoctor.events import Kind
from ddpdoctor.recorder.clockpairs import ClockPairs
from ddpdoctor.recorder.writer import RankFile, StepRow

HOST: Final = "host"
CUDA_EVENT: Final = "cuda_event"
MOST_WAITING: Final = 8192  # marks whose events are not done; beyond, no more are recorded
ANCHOR_AFTER_MS: Final = 1000.0  # elapsed times are 32-bit floats: within it, exact to 0.1 µs
_STEP_MARKS: Final = 1024  # marks of the training thread among which a step's ends are looked up
_BEGIN, _END = 11, 13  # among the arguments of RankFile.add


class Event(Protocol):
    """What of `torch.cuda.Event(enable_timing=True)` is used."""

    def record(self, stream: Any) -> object: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class Device(Protocol):
    """What of a GPU is used."""

    def new_event(self) -> Event: ...
    def current_stream(self) -> object: ...
    def is_capturing(self) -> bool: ...


class Cuda:
    """The GPU of the model, whichever one is current on the calling thread."""

    def __init__(self, device: torch.device) -> None:
        self.new_event: Callable[[], Event] = partial(torch.cuda.Event, enable_timing=True)
        self.current_stream = partial(torch.cuda.current_stream, device)
        self.is_capturing = torch.cuda.is_current_stream_capturing


@dataclass(eq=False, slots=True)
class Mark:
    """A place in a stream. `ns` is when the device came to it, on the host's clock, 0 unknown."""

    host_ns: int
    event: Event | None
    ns: int = 0


@dataclass(eq=False, slots=True)
class _Waiting:
    """A record whose times wait for events. Without `end` it is under way."""

    serial: int
    begin: Mark
    end: Mark | None = None
    is_span: bool = True


class DeviceTimedFile:
    """Stands in front of a rank file, and gives its records the times of the device.

    Step rows stay sums of the host's times.
    """

    def __init__(
        self, file: RankFile, device: Device, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._file = file
        self._device = device
        self._now_ns = now_ns
        self._pool: list[Event] = []
        self._open: dict[int, _Waiting] = {}
        self._waiting: list[_Waiting] = []  # those that ended
        self._stream: deque[Mark] = deque()  # in the order in which the device comes to them
        self._completions: list[Mark] = []  # of collectives, on streams of their own
        self._recent: deque[Mark] = deque(maxlen=_STEP_MARKS)  # of spans
        self._anchor: tuple[Event, int] | None = None  # an event that is done, its device time
        self._latest_ns = 0
        self.clock = ClockPairs()
        self.untimed = 0  # records that kept the host's times

    def add(self, *fields: int) -> int:
        if fields[0] == Kind.STEP:
            return self._add_step_record(fields)
        serial = self._file.add(*fields)
        if serial < 0:  # not recorded
            return serial
        is_span = fields[0] != Kind.COLLECTIVE
        mark = self._mark_stream(fields[_BEGIN], recent=is_span)
        self._open[serial] = _Waiting(serial, mark, is_span=is_span)
        return serial

    def finish(self, serial: int, end_ns: int, issued_ns: int = 0) -> None:
        """The end of a span. A collective that ends here was one of the host: so are its times."""
        waiting = self._open.pop(serial, None)
        if waiting is None or not waiting.is_span:
            self._file.finish(serial, end_ns, issued_ns)
            return
        waiting.end = self._mark_stream(end_ns, recent=True)
        self._waiting.append(waiting)

    def completes(self, serial: int, _future: object = None) -> None:
        """To be called within the callback of a future, whose stream is behind the collective."""
        waiting = self._open.pop(serial, None)
        if waiting is not None:
            waiting.end = self._mark(self._now_ns())
            self._completions.append(waiting.end)
            self._waiting.append(waiting)

    def record(self, on: bool) -> None:
        """No step reaches over a time in which nothing was recorded."""
        self._recent.clear()
        self._file.record(on)

    def flag(self, serial: int, flags: int) -> None:
        self._file.flag(serial, flags)

    def add_step(self, row: StepRow) -> None:
        """A step ended: the place where events are asked."""
        self._file.add_step(row)
        self.settle()

    def settle(self) -> None:
        """Write the times of all records whose events are done. On the training thread only."""
        if self._device.is_capturing():
            return
        now = self._now_ns()
        while self._stream and self._comes_to(self._stream[0], now):
            mark = self._stream.popleft()
            mark.ns = self._latest_ns = max(mark.ns, self._latest_ns)
        self._completions = [mark for mark in self._completions if not self._comes_to(mark, now)]
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self._settle_one(record)

    def close(self) -> None:
        """What is not done by now keeps the host's times: nothing is waited for."""
        self.settle()
        for record in self._waiting:
            self._keep_host_times(record)
        self._waiting.clear()

    def _settle_one(self, record: _Waiting) -> None:
        begin, end = record.begin, record.end
        if end is None or begin.event is not None or end.event is not None:
            self._waiting.append(record)
        elif begin.ns and end.ns:
            self._file.retime(record.serial, begin.ns, max(begin.ns, end.ns))
        else:
            self._keep_host_times(record)

    def _keep_host_times(self, record: _Waiting) -> None:
        self.untimed += 1
        if record.end is not None:
            self._file.finish(record.serial, record.end.host_ns)

    def _add_step_record(self, fields: tuple[int, ...]) -> int:
        """A step begins and ends at the training thread's last mark before; else it is not one."""
        begin, end = self._mark_before(fields[_BEGIN]), self._mark_before(fields[_END])
        if begin is None or end is None:
            return 0
        serial = self._file.add(*(0 if at == _END else field for at, field in enumerate(fields)))
        self._waiting.append(_Waiting(serial, begin, end))
        return serial

    def _mark_before(self, host_ns: int) -> Mark | None:
        index = bisect_right(self._recent, host_ns, key=lambda mark: mark.host_ns)
        return self._recent[index - 1] if index else None

    def _mark_stream(self, host_ns: int, *, recent: bool) -> Mark:
        mark = self._mark(host_ns)
        if mark.event is not None:
            self._stream.append(mark)
        if recent:
            self._recent.append(mark)
        return mark

    def _mark(self, host_ns: int) -> Mark:
        """Without an event while a graph is captured, or where too many are under way."""
        too_many = len(self._stream) + len(self._completions) >= MOST_WAITING
        if too_many or self._device.is_capturing():
            return Mark(host_ns, None)
        event = self._pool.pop() if self._pool else self._device.new_event()
        event.record(self._device.current_stream())
        return Mark(host_ns, event)

    def _comes_to(self, mark: Mark, seen_ns: int) -> bool:
        """Whether the device has come to the mark; then its time is taken and its event free."""
        event = mark.event
        if event is None:
            return True
        if not event.query():
            return False
        anchor, anchor_ns = self._anchor = self._anchor or (event, 0)
        elapsed_ms = anchor.elapsed_time(event) if event is not anchor else 0.0
        device_ns = anchor_ns + round(elapsed_ms * 1e6)
        self.clock.add(mark.host_ns, device_ns, seen_ns)
        mark.ns, mark.event = device_ns + self.clock.offset_ns, None
        if elapsed_ms >= ANCHOR_AFTER_MS:
            self._anchor, event = (event, device_ns), anchor
        if event is not self._anchor[0]:
            self._pool.append(event)
        return True


AnyFile = RankFile | DeviceTimedFile


def timed(file: RankFile, device: torch.device) -> AnyFile:
    """The file itself for a model on the host."""
    return DeviceTimedFile(file, Cuda(device)) if device.type == "cuda" else file
