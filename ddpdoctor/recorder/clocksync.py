"""The offset of this rank's clock to rank 0's, where the two do not share one.

Cristian's method over the job's store: a rank times round trips to rank 0, which stamps each in
between; of the shortest, half is the bound of the error. One rank of each clock measures: when
recording begins, every ten minutes and at the end. It runs beside the training, on a client of the
store of its own, and every wait is bounded.
"""

from __future__ import annotations

import datetime
import hashlib
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from torch.distributed import DistStoreError

from ddpdoctor.events import ClockOffset, RankInfo
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.guard import Guard

ROUND_TRIPS: Final = 40
LAST_ROUND_TRIPS: Final = 10  # at the end, when the process waits for them
PATIENCE_S: Final = 120.0  # for ranks that come late to their first model
LAST_PATIENCE_S: Final = 1.0  # at the end: for rank 0 to answer, and on rank 0 for the others
STOP_S: Final = 2.5  # the longest that `stop` takes: that patience and one trip that is lost
_LOOK_EVERY_S: Final = 0.25
_TURN_EVERY_S: Final = 0.05  # rank 0 waits while a rank whose turn has come does not look
_LAST_LOOK_EVERY_S: Final = 0.01
_TRIP: Final = datetime.timedelta(seconds=1)  # what takes longer says little about the offset

# Keys in the store. Each rank that measures has a slot; it puts what it wants there and rings.
_PREFIX: Final = "ddpdoctor/clock"
_ID: Final = f"{_PREFIX}/id"  # of rank 0's clock
_SHARING: Final = f"{_PREFIX}/sharing"  # how many ranks leave the measuring to others
_SLOTS: Final = f"{_PREFIX}/slots"  # how many ranks measure
_RINGS: Final = f"{_PREFIX}/rings"


@dataclass(frozen=True)
class Timing:
    """When clocks are compared again. Clocks drift apart by some µs a second at most."""

    every_s: float = 600.0
    last_after_s: float = 10.0  # no last measurement where the one before is younger


DEFAULT_TIMING: Final = Timing()


class _End:
    """When the process wants to end, and how long it still waits for the others."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._give_up_at = float("inf")

    def begin(self) -> None:
        self._give_up_at = time.monotonic() + LAST_PATIENCE_S
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Whether it has begun, at the latest after these seconds; then only for a moment."""
        if self._event.is_set():
            time.sleep(_LAST_LOOK_EVERY_S)
        return self._event.wait(seconds)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._give_up_at


class ClockSync:
    """A thread that measures, or on rank 0 answers; it ends early where all share one clock.

    `tell` gets each measurement. `now_ns` is this rank's clock.
    """

    def __init__(
        self,
        info: RankInfo,
        tell: Callable[[ClockOffset], None],
        guard: Guard,
        timing: Timing = DEFAULT_TIMING,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._end = _End()
        self._part: _Answers | _Measures
        if info.rank == 0:
            self._part = _Answers(self._end, info, timing, now_ns)
        else:
            told = lambda offset: guard.run(tell, offset)  # noqa: E731
            self._part = _Measures(self._end, info.clock_id, told, timing, now_ns)
        self._thread = threading.Thread(target=self._run, name="ddpdoctor-clock", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after a last measurement where the one before is old by now."""
        self._end.begin()
        self._thread.join(timeout=STOP_S)

    def _run(self) -> None:
        # The store may have no clone, or be gone: then nothing more is measured.
        with suppress(AttributeError, RuntimeError):
            self._part.run(private.store_of_its_own())


class _Answers:
    """Rank 0: stamps the round trips of one rank after the other."""

    def __init__(
        self,
        end: _End,
        info: RankInfo,
        timing: Timing,
        now_ns: Callable[[], int],
    ) -> None:
        self._end = end
        self._info = info
        self._timing = timing
        self._now_ns = now_ns
        self._rings = 0
        self._slots = 0
        self._left: set[int] = set()  # slots of ranks that measure no more

    def run(self, store: Any) -> None:
        began = time.monotonic()
        store.set(_ID, self._info.clock_id)
        while not self._end.wait(_LOOK_EVERY_S):
            self._look(store)
            if self._slots == len(self._left) and self._all_are_known(store):
                return
        if time.monotonic() - began >= self._timing.last_after_s:
            self._let_them_measure_once_more(store)

    def _let_them_measure_once_more(self, store: Any) -> None:
        while len(self._left) < self._slots and not self._end.is_over:
            self._look(store)
            self._end.wait(_LAST_LOOK_EVERY_S)

    def _all_are_known(self, store: Any) -> bool:
        return int(store.add(_SHARING, 0)) + self._slots >= self._info.world_size - 1

    def _look(self, store: Any) -> None:
        rings = int(store.add(_RINGS, 0))
        if rings == self._rings:
            return
        self._rings, self._slots = rings, int(store.add(_SLOTS, 0))
        for slot in set(range(1, self._slots + 1)) - self._left:
            if store.check([_goodbye(slot)]):
                self._left.add(slot)
            elif store.check([_ask(slot)]):
                with suppress(DistStoreError):  # it fell silent; the others are served
                    answer(store, slot, self._now_ns)


class _Measures:
    """Any other rank: measures for all that share its clock, or leaves it to one of them."""

    def __init__(
        self,
        end: _End,
        clock_id: str,
        tell: Callable[[ClockOffset], object],
        timing: Timing,
        now_ns: Callable[[], int],
    ) -> None:
        self._end = end
        self._clock_id = clock_id
        self._tell = tell
        self._timing = timing
        self._now_ns = now_ns
        self._measured = 0

    def run(self, store: Any) -> None:
        if not self._appeared(store, _ID, _LOOK_EVERY_S):
            return
        if not self._is_first_of_its_clock(store):
            store.add(_SHARING, 1)
            return
        slot = int(store.add(_SLOTS, 1))
        at = self._measure(store, slot, ROUND_TRIPS)
        while not self._end.wait(self._timing.every_s):
            at = self._measure(store, slot, ROUND_TRIPS)
        if time.monotonic() - at >= self._timing.last_after_s:
            self._measure(store, slot, LAST_ROUND_TRIPS)
        store.set(_goodbye(slot), "")
        store.add(_RINGS, 1)

    def _is_first_of_its_clock(self, store: Any) -> bool:
        """Whether no other rank measures for this clock; rank 0's needs no measuring."""
        if str(store.get(_ID), "utf-8") == self._clock_id:
            return False
        digest = hashlib.sha256(self._clock_id.encode()).hexdigest()[:16]
        taken = f"{_PREFIX}/of/{digest}"
        return int(store.add(taken, 1)) == 1

    def _measure(self, store: Any, slot: int, trips: int) -> float:
        """Ask rank 0 and tell the offset, unless it does not answer; when that was."""
        self._measured += 1
        name = _measurement(slot, self._measured)
        store.set(_ask(slot), f"{self._measured} {trips}")
        store.add(_RINGS, 1)
        if not self._appeared(store, f"{name}/go", _TURN_EVERY_S):
            store.delete_key(_ask(slot))
        else:
            with suppress(DistStoreError):  # rank 0 fell silent; it may answer the next time
                self._tell(measure(store, name, trips, self._now_ns))
        return time.monotonic()

    def _appeared(self, store: Any, key: str, every_s: float) -> bool:
        """Wait for a key, without holding the store; False when patience or the job ends."""
        until = time.monotonic() + PATIENCE_S
        while not store.check([key]):
            self._end.wait(every_s)
            if self._end.is_over or time.monotonic() > until:
                return False
        return True


def _ask(slot: int) -> str:
    return f"{_PREFIX}/{slot}/ask"


def _goodbye(slot: int) -> str:
    return f"{_PREFIX}/{slot}/goodbye"


def _measurement(slot: int, number: int) -> str:
    return f"{_PREFIX}/{slot}/{number}"


def answer(store: Any, slot: int, now_ns: Callable[[], int]) -> None:
    """Stamp each round trip of one rank. Raises DistStoreError when it falls silent."""
    number, trips = map(int, store.get(_ask(slot)).split())
    store.delete_key(_ask(slot))
    name = _measurement(slot, number)
    store.set(f"{name}/go", "")
    stamps = []
    for trip in range(trips):
        store.wait([f"{name}/{trip}"], _TRIP)
        stamps.append(now_ns())
        store.set(f"{name}/{trip}/answer", "")
    store.set(f"{name}/stamps", " ".join(map(str, stamps)))
    for trip in range(trips):
        store.delete_key(f"{name}/{trip}")
    for trip in range(trips - 1):  # the last is perhaps still waited for
        store.delete_key(f"{name}/{trip}/answer")


def measure(store: Any, name: str, trips: int, now_ns: Callable[[], int]) -> ClockOffset:
    """The offset by the shortest round trip. Raises DistStoreError when rank 0 falls silent."""
    times = []
    for trip in range(trips):
        begin = now_ns()
        store.set(f"{name}/{trip}", "")
        store.wait([f"{name}/{trip}/answer"], _TRIP)
        times.append((begin, now_ns()))
    store.wait([f"{name}/stamps"], _TRIP)
    stamps = map(int, store.get(f"{name}/stamps").split())
    for used in ("go", "stamps", f"{trips - 1}/answer"):
        store.delete_key(f"{name}/{used}")
    found = [
        ClockOffset(stamp - (begin + end) // 2, (end - begin + 1) // 2, (begin + end) // 2)
        for (begin, end), stamp in zip(times, stamps, strict=True)
    ]
    return min(found, key=lambda offset: offset.error_ns)
