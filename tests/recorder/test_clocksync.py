"""Clocks are compared over a real store, by threads that stand for the ranks of several hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from ddpdoctor.events import ClockOffset
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder import clocksync
from ddpdoctor.recorder.clocksync import STOP_S, ClockSync, Timing
from ddpdoctor.recorder.guard import Guard
from tests.builders import rank_info

SHIFT_NS = 5_000 * 10**9
SHIFTED = lambda: time.monotonic_ns() + SHIFT_NS
OFTEN = Timing(every_s=0.3, last_after_s=0.0)
SOON_S = 10.0  # on a busy machine


def fails(error: Exception) -> None:
    raise error


@pytest.fixture(autouse=True)
def job(tmp_path: Path) -> Iterator[None]:
    """A process group whose store all the threads are clients of."""
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Rank:
    """The part of one rank that compares clocks, and what it was told."""

    def __init__(
        self,
        rank: int,
        clock_id: str,
        world_size: int = 2,
        timing: Timing = OFTEN,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.told: list[ClockOffset] = []
        info = rank_info(rank, world_size, clock_id=clock_id)
        self.sync = ClockSync(info, self.told.append, Guard(fails), timing, now_ns)

    def has_told(self, count: int) -> None:
        wait_until(lambda: len(self.told) >= count)

    def stop(self) -> float:
        began = time.monotonic()
        self.sync.stop()
        return time.monotonic() - began


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def clock_threads() -> int:
    return sum(thread.name == "ddpdoctor-clock" for thread in threading.enumerate())


def test_a_clock_is_measured_when_recording_begins_every_interval_and_at_the_end() -> None:
    rank_0 = Rank(0, "here")
    rank_1 = Rank(1, "there", now_ns=SHIFTED)
    rank_1.has_told(3)
    before = len(rank_1.told)
    rank_1.stop()
    rank_0.stop()

    assert len(rank_1.told) > before
    assert [each.at_ns for each in rank_1.told] == sorted(each.at_ns for each in rank_1.told)
    for each in rank_1.told:
        assert abs(each.offset_ns + SHIFT_NS) <= each.error_ns
    assert clock_threads() == 0


def test_rank_0_answers_while_it_closes() -> None:
    """Both at once, as at the end of a script."""
    rank_0 = Rank(0, "here")
    rank_1 = Rank(1, "there", timing=Timing(every_s=1000, last_after_s=0.0))
    rank_1.has_told(1)

    closing = threading.Thread(target=rank_0.stop)
    closing.start()
    rank_1.stop()
    closing.join()

    assert len(rank_1.told) == 2
    assert clock_threads() == 0


def test_a_short_run_ends_without_another_measurement() -> None:
    rank_0 = Rank(0, "here", timing=Timing())
    rank_1 = Rank(1, "there", timing=Timing())
    rank_1.has_told(1)

    spent_s = rank_0.stop() + rank_1.stop()

    assert len(rank_1.told) == 1
    assert spent_s < clocksync.LAST_PATIENCE_S


def test_ranks_of_one_clock_measure_nothing_and_their_threads_end() -> None:
    ranks = [Rank(rank, "here", world_size=3) for rank in range(3)]

    wait_until(lambda: clock_threads() == 0)

    assert all(rank.told == [] for rank in ranks)


def test_one_rank_of_another_clock_measures_for_all_of_it() -> None:
    rank_0 = Rank(0, "here", world_size=5)
    others = [Rank(rank, f"there {rank % 2}", world_size=5) for rank in range(1, 5)]
    wait_until(lambda: sum(len(rank.told) for rank in others) >= 4)
    for rank in (*others, rank_0):
        rank.stop()

    assert sum(bool(rank.told) for rank in others) == 2


def test_a_rank_that_is_gone_costs_the_others_a_bounded_moment() -> None:
    """It asked, was killed, and never says that it ends."""
    rank_0 = Rank(0, "here", world_size=3)
    store = private.store_of_its_own()
    wait_until(lambda: store.check([clocksync._ID]))
    slot = store.add(clocksync._SLOTS, 1)
    store.set(clocksync._ask(slot), "1 40")
    store.add(clocksync._RINGS, 1)
    rank_2 = Rank(2, "there", world_size=3)

    rank_2.has_told(1)

    assert rank_2.stop() < STOP_S + 1
    assert rank_0.stop() < STOP_S + 1
    assert clock_threads() == 0


def test_without_rank_0_a_rank_ends_in_time_and_knows_nothing() -> None:
    rank_0 = Rank(0, "here")
    rank_1 = Rank(1, "there")
    rank_1.has_told(1)
    rank_0.stop()
    known = len(rank_1.told)

    assert rank_1.stop() < STOP_S + 1
    assert len(rank_1.told) == known
    assert clock_threads() == 0


def test_a_rank_that_nobody_ever_answers_ends_in_time() -> None:
    assert Rank(1, "there").stop() < STOP_S + 1
    assert clock_threads() == 0


def test_the_store_does_not_fill_with_measurements() -> None:
    timing = Timing(every_s=0.02, last_after_s=0.0)
    rank_0 = Rank(0, "here", timing=timing)
    rank_1 = Rank(1, "there", timing=timing)
    rank_1.has_told(2)
    keys = private.store_of_its_own().num_keys()
    rank_1.has_told(5)
    rank_1.stop()
    rank_0.stop()

    assert private.store_of_its_own().num_keys() <= keys + 5
