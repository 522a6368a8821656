"""DD906 slow-not-stuck."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpdoctor.findings import Severity
from ddpdoctor.hang.snapshot import Movement
from tests.hang_builders import (
    BUSY,
    NEXT_BATCH,
    STILL,
    at,
    codes,
    in_backward,
    only_finding,
    snapshot,
    user,
)


@pytest.mark.parametrize(
    "movement",
    [
        BUSY,
        replace(STILL, path_changed=True),
        replace(STILL, io_bytes=10_000_000),
        replace(STILL, main_thread_woke=1),
    ],
    ids=["busy", "other line", "moves bytes", "woken in the collective"],
)
def test_any_progress_of_one_rank_is_no_hang(movement: Movement) -> None:
    code, finding = only_finding(snapshot(in_backward(0), in_backward(1, movement=movement)))

    assert code == "DD906"
    assert finding.severity is Severity.INFO
    assert finding.culprits == ()


def test_a_busy_rank_that_the_others_wait_for_is_shown() -> None:
    busy = at(0, user(25, "score(batch)", "evaluate"), movement=BUSY)

    _, finding = only_finding(snapshot(busy, in_backward(1), in_backward(2)))

    assert "rank 0 is busy" in finding.message
    assert finding.where[0].line == 25
    assert finding.victims == (1, 2)


@pytest.mark.parametrize(
    "movement",
    [
        STILL,
        replace(STILL, cpu_s=0.02),
        replace(STILL, io_bytes=500),
        replace(STILL, io_bytes=100_000, watched_s=10.0),  # what a recorder's thread reads
        Movement(watched_s=1.2, io_bytes=None, main_thread_woke=None),
    ],
    ids=["nothing", "a helper thread", "a line of logging", "the recorder", "not readable"],
)
def test_what_a_hung_rank_does_anyway_is_no_progress(movement: Movement) -> None:
    seen = snapshot(in_backward(0, movement=movement), in_backward(1, movement=movement))

    assert codes(seen) == ["DD908"]


def test_a_poll_of_a_rank_outside_a_collective_is_no_progress() -> None:
    polls = at(0, user(25, "time.sleep(0.1)"), movement=replace(STILL, main_thread_woke=12))

    assert codes(snapshot(polls, in_backward(1))) == ["DD903"]


@pytest.mark.parametrize(
    ("movement", "helpers"),
    [(STILL, BUSY), (replace(STILL, main_thread_woke=6), STILL)],
    ids=["a worker computes", "batches come"],
)
def test_a_loader_that_delivers_is_progress(movement: Movement, helpers: Movement) -> None:
    waits = at(1, *NEXT_BATCH, user(20), movement=movement, helpers=helpers)

    assert codes(snapshot(in_backward(0), waits)) == ["DD906"]


def test_the_poll_of_torchs_own_queue_is_no_progress() -> None:
    waits = at(1, *NEXT_BATCH, user(20), movement=replace(STILL, main_thread_woke=1))

    assert codes(snapshot(in_backward(0), waits)) == ["DD907"]


def test_prefetching_workers_of_a_rank_in_a_collective_are_no_progress() -> None:
    assert codes(snapshot(in_backward(0, helpers=BUSY), in_backward(1))) == ["DD908"]


def test_a_cpu_that_spins_for_a_gpu_is_no_progress_but_a_changing_stack_is() -> None:
    def spins(number: int, **changes: bool):
        return in_backward(number, movement=replace(BUSY, **changes), on_gpu=True)

    missing = at(2, user(25, "queue.get()"), on_gpu=True)

    assert codes(snapshot(spins(0), spins(1), missing)) == ["DD903"]
    assert codes(snapshot(spins(0), spins(1, stack_changed=True), missing)) == ["DD906"]


@pytest.mark.parametrize(
    ("text", "woke", "code"),
    [
        ("got = near.recv(65536)", 9, "DD906"),
        ("got = near.recv(65536)", 1, "DD903"),
        ("time.sleep(0.1)", 9, "DD903"),
    ],
)
def test_a_download_over_a_slow_line_is_progress_and_polling_is_none(
    text: str, woke: int, code: str
) -> None:
    movement = replace(STILL, main_thread_woke=woke)

    assert codes(snapshot(at(0, user(60, text, "get"), movement=movement), in_backward(1))) == [
        code
    ]
