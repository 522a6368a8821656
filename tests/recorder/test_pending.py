"""A process group is not let go while one of its threads may still want Python's lock."""

from __future__ import annotations

import threading
import time

from ddpdoctor.recorder.pending import Pending


def test_waits_for_the_calls_of_one_group_alone() -> None:
    pending = Pending()
    ours, other = object(), object()
    pending.add(1, ours)
    pending.add(2, other)
    later = threading.Timer(0.05, pending.called_back, [1])
    later.start()

    assert pending.wait(ours, seconds=30)
    assert not pending.wait(other, seconds=0.05)
    pending.remove(2)
    assert pending.wait(seconds=30)
    later.join()


def test_a_thread_of_python_that_never_rests_is_not_waited_for() -> None:
    """A collective that was complete at once called back on it."""
    pending = Pending()
    stop = threading.Event()

    def busy() -> None:
        pending.add(1, self)
        pending.called_back(1)
        while not stop.is_set():
            pass

    self = object()
    thread = threading.Thread(target=busy)
    thread.start()
    try:
        began = time.monotonic()
        assert pending.wait(self, seconds=30)
        assert time.monotonic() - began < 1.5  # threads that count are given two seconds
    finally:
        stop.set()
        thread.join()
