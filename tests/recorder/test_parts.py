"""Counters of what lies across the phases of a step."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.cgroups import hierarchy_of, unified
from ddpdoctor.recorder.pauses import Pauses
from ddpdoctor.recorder.pressure import Counter, Pressure, RunQueue, Throttled


@pytest.fixture
def pauses() -> Iterator[Pauses]:
    """With no collections but those that a test asks for."""
    gc.disable()
    counting = Pauses()
    yield counting
    counting.close()
    gc.enable()


def collect_large_garbage() -> float:
    """Milliseconds that a collection of many containers takes."""
    garbage = [[index] for index in range(300_000)]
    began = time.monotonic_ns()
    gc.collect()
    took = time.monotonic_ns() - began
    del garbage
    return took / 1e6


def test_a_collection_is_counted_for_as_long_as_it_takes(pauses: Pauses) -> None:
    took_ms = collect_large_garbage()

    assert pauses.total_ns / 1e6 == pytest.approx(took_ms, rel=0.2)
    longest = max(pauses.before(time.monotonic_ns()), key=lambda p: p.end_ns - p.begin_ns)
    assert longest.generation == 2
    assert (longest.end_ns - longest.begin_ns) / 1e6 == pytest.approx(took_ms, rel=0.2)
    assert not pauses.long


def test_short_collections_are_only_added_up(pauses: Pauses) -> None:
    gc.collect(0)
    pauses.long.clear()
    before = pauses.total_ns
    gc.collect(0)

    assert pauses.total_ns > before
    assert not pauses.long


def test_collections_of_other_threads_are_not_counted(pauses: Pauses) -> None:
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join(timeout=60)

    assert pauses.total_ns == 0


def test_closing_leaves_no_callback_behind() -> None:
    before = list(gc.callbacks)
    counting = Pauses()
    assert len(gc.callbacks) == len(before) + 1
    counting.close()
    counting.close()
    assert gc.callbacks == before


def test_the_run_queue_of_this_thread_is_counted() -> None:
    counter = RunQueue()
    expected = Path("/proc/thread-self/schedstat").exists()
    assert counter.counts is expected
    if expected:
        first = counter.nanoseconds()
        assert counter.nanoseconds() >= first
    counter.close()


def counted(kind: type[Counter], folder: Path, text: str) -> int | None:
    file = folder / "counter"
    file.write_text(text)
    counter = kind(file)  # type: ignore[call-arg]
    value = counter.nanoseconds() if counter.counts else None
    counter.close()
    return value


def test_throttling_is_read_as_either_version_writes_it(tmp_path: Path) -> None:
    two = "usage_usec 5\nnr_periods 2\nnr_throttled 1\nthrottled_usec 1500\n"
    one = "nr_periods 2\nnr_throttled 1\nthrottled_time 1500000\n"
    assert counted(Throttled, tmp_path, two) == counted(Throttled, tmp_path, one) == 1_500_000
    assert counted(Throttled, tmp_path, "usage_usec 5\n") is None
    assert counted(Throttled, tmp_path, "throttled_usec many\n") is None


def test_pressure_is_that_of_some_task(tmp_path: Path) -> None:
    some, full = "some avg10=1.00 avg60=0 avg300=0 total=2500", "full avg10=0 total=9"
    assert counted(Pressure, tmp_path, f"{some}\n{full}\n") == 2_500_000
    assert counted(Pressure, tmp_path, "") is None


def test_a_counter_that_is_gone_keeps_its_last_value(tmp_path: Path) -> None:
    """As that of a control group that was removed."""
    file = tmp_path / "counter"
    file.write_text("throttled_usec 7\n")
    counter = Throttled(file)
    os.truncate(file, 0)
    assert counter.nanoseconds() == 7000
    counter.close()
    assert counter.nanoseconds() == 7000


def process(folder: Path, cgroup: str, mounts: str) -> Path:
    (folder / "cgroup").write_text(cgroup)
    (folder / "mountinfo").write_text(mounts)
    return folder


def test_version_one_has_a_hierarchy_for_each_controller(tmp_path: Path) -> None:
    root = tmp_path / "cpu"
    (root / "pod" / "app").mkdir(parents=True)
    proc = process(
        tmp_path,
        "3:cpu,cpuacct:/pod/app\n0::/\n",
        f"30 25 0:28 / {root} rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        f"31 25 0:29 / {tmp_path}/two rw - cgroup2 cgroup2 rw\n",
    )
    hierarchy = hierarchy_of("cpu", proc)
    assert hierarchy is not None
    assert hierarchy.version == 1
    assert list(hierarchy.up()) == [root / "pod" / "app", root / "pod", root]


def test_version_two_has_one_for_all_of_which_a_container_may_see_a_part(tmp_path: Path) -> None:
    root = tmp_path / "unified"
    (root / "app").mkdir(parents=True)
    proc = process(
        tmp_path,
        "0::/docker/1234/app\n",
        f"31 25 0:29 /docker/1234 {root} rw - cgroup2 cgroup2 rw\n",
    )
    hierarchy = hierarchy_of("cpu", proc)
    assert hierarchy == unified(proc)
    assert hierarchy is not None
    assert hierarchy.version == 2
    assert hierarchy.group == root / "app"


def test_without_control_groups_there_is_no_hierarchy(tmp_path: Path) -> None:
    assert hierarchy_of("cpu", process(tmp_path, "", "")) is None
    assert hierarchy_of("cpu", tmp_path / "nowhere") is None
