"""The offset of this rank's clock to rank 0's, where the two do not share one.

Cristian's method over the job's store: a rank times round trips to rank 0, which stamps each in
between; of the shortest, half is the bound of the error. It runs beside the training, on a client
of the store of its own, and every wait is bounded.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ddpdoctor.events import ClockOffset
from ddpdoctor.recorder import _torch_private as private

ROUND_TRIPS: Final = 40
PATIENCE_S: Final = 120.0  # for ranks that come late to their first model
_LOOK_EVERY_S: Final = 0.25
_ANSWER: Final = datetime.timedelta(seconds=5)
_PATIENT_ANSWER: Final = datetime.timedelta(seconds=PATIENCE_S)  # others may be served before
_PREFIX: Final = "ddpdoctor/clock"


class ClockSync:
    """A thread that measures (or, on rank 0, answers) and then ends. `stop` ends it early."""

    def __init__(
        self, rank: int, world_size: int, clock_id: str, tell: Callable[[ClockOffset], None]
    ) -> None:
        self._rank = rank
        self._others = world_size - 1
        self._clock_id = clock_id
        self._tell = tell
        self._stop = threading.Event()
        self._store: Any = None  # opened on the thread: without one only the clock is not measured
        self._thread = threading.Thread(target=self._run, name="ddpdoctor-clock", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * _ANSWER.total_seconds())

    def _run(self) -> None:
        try:
            self._store = private.store_of_its_own()
            if self._rank == 0:
                self._answer_all()
            else:
                self._compare()
        except (AttributeError, RuntimeError):
            # the store has no clone or is gone, or nobody answered: the offset stays unknown
            return

    def _appeared(self, key: str) -> bool:
        """Wait for a key, without holding the store; False when patience or the job ends."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._stop.wait(_LOOK_EVERY_S) and time.monotonic() < deadline:
            if self._store.check([key]):
                return True
        return False

    def _answer_all(self) -> None:
        """One rank after the other, in the order in which they took their tickets."""
        self._store.set(f"{_PREFIX}/id", self._clock_id)
        for ticket in range(1, self._others + 1):
            if not self._appeared(f"{_PREFIX}/{ticket}"):
                return
            if self._store.get(f"{_PREFIX}/{ticket}") != b"same":
                answer_one(self._store, ticket)

    def _compare(self) -> None:
        if not self._appeared(f"{_PREFIX}/id"):
            return
        same = self._store.get(f"{_PREFIX}/id").decode() == self._clock_id
        ticket = int(self._store.add(f"{_PREFIX}/tickets", 1))
        self._store.set(f"{_PREFIX}/{ticket}", "same" if same else "other")
        if not same and not self._stop.is_set():
            self._tell(measure(self._store, ticket))


def answer_one(store: Any, ticket: int) -> None:
    """Stamp each round trip of one rank. Raises RuntimeError when it falls silent."""
    for turn in range(ROUND_TRIPS):
        store.wait([f"{_PREFIX}/{ticket}/ask/{turn}"], _ANSWER)
        store.set(f"{_PREFIX}/{ticket}/answer/{turn}", str(time.monotonic_ns()))


def measure(store: Any, ticket: int) -> ClockOffset:
    """The offset by the shortest round trip. Raises RuntimeError when rank 0 does not answer."""
    trips = [_round_trip(store, ticket, turn) for turn in range(ROUND_TRIPS)]
    return min(trips, key=lambda trip: trip.error_ns)


def _round_trip(store: Any, ticket: int, turn: int) -> ClockOffset:
    answer = f"{_PREFIX}/{ticket}/answer/{turn}"
    begin = time.monotonic_ns()
    store.set(f"{_PREFIX}/{ticket}/ask/{turn}", "")
    store.wait([answer], _PATIENT_ANSWER if turn == 0 else _ANSWER)
    end = time.monotonic_ns()
    stamp = int(store.get(answer))  # after the stamp: `get` is a second round trip
    return ClockOffset(stamp - (begin + end) // 2, (end - begin + 1) // 2, end)
