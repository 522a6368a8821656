"""Fail open: an error of ours costs one warning and the recording, never the training."""

from __future__ import annotations

import inspect
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from ddpdoctor.events import GroupInfo, Kind, RunInfo
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.writer import RankFile
from ddpdoctor.tracefile import read_rank
from tests.builders import rank_info

SIGNALS = 200


def test_results_pass_through_and_time_is_counted() -> None:
    guard = Guard(lambda error: None)

    assert guard.run(lambda a, b: a + b, 1, 2) == 3
    assert guard.cost_ns > 0


def test_the_first_error_is_told_once_and_ends_recording() -> None:
    errors: list[Exception] = []
    calls: list[int] = []
    guard = Guard(errors.append)

    def fails() -> None:
        calls.append(1)
        raise ValueError("ours")

    assert guard.run(fails) is None
    assert guard.run(fails) is None

    assert len(errors) == len(calls) == 1
    assert not guard.active


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_passes_through_and_recording_stays_on(
    kind: type[BaseException],
) -> None:
    """Ctrl-C, or a signal's handler that calls sys.exit, may come within one of our hooks."""
    errors: list[Exception] = []
    guard = Guard(errors.append)

    def interrupted() -> None:
        raise kind

    with pytest.raises(kind):
        guard.run(interrupted)

    assert errors == []
    assert guard.active


class Preempted(Exception):
    """What a script's handler raises to leave the loop, as for a checkpoint before the end."""


def raises(number: int, frame: object) -> None:
    raise Preempted


def raises_once(*given: object) -> None:
    """Gives way to the default for a second signal, as many do."""
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    raise Preempted


class Job:
    def stop(self, reason: str, number: int, frame: object) -> None:
        self._save(reason)

    def _save(self, reason: str) -> None:
        raise Preempted(reason)


@pytest.mark.parametrize(
    "handler",
    [raises, raises_once, partial(Job().stop, "preempted")],
    ids=["function", "resets-itself", "method-within-partial"],
)
def test_what_a_signals_handler_raises_within_a_hook_reaches_the_training(
    handler: Callable[..., None],
) -> None:
    errors: list[Exception] = []
    guard = Guard(errors.append)

    def hook() -> None:
        signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(Preempted):
            guard.run(guard.run, hook)
    finally:
        signal.signal(signal.SIGALRM, before)

    assert errors == []
    assert guard.active


def test_an_error_of_ours_beside_a_frame_is_no_signals_handler() -> None:
    """Hooks look at frames of the script, too, and may fail at it."""
    errors: list[Exception] = []

    def looks_at(frame: FrameType | None) -> None:
        raise ValueError("ours")

    def hook(frame: FrameType | None) -> None:
        looks_at(frame)

    Guard(errors.append).run(hook, inspect.currentframe())

    assert [str(error) for error in errors] == ["ours"]


def test_a_signals_handler_may_record_while_a_hook_records(tmp_path: Path) -> None:
    """As one that saves a checkpoint and meets the others in a barrier; neither waits for ever."""
    errors: list[Exception] = []
    guard = Guard(errors.append)
    file = RankFile(tmp_path / "rank00000.ddt", RunInfo("r", 0, 1, "gloo"), rank_info(0, 1))
    facts = FactsFile(tmp_path / "rank00000.facts.jsonl")
    handled = 0

    def record(step: int) -> None:
        now = time.monotonic_ns()
        serial = file.add(Kind.COLLECTIVE, 9, 0, 0, step, 0, step, 0, -1, 0, -1, now, 0, 0, 1)
        file.finish(serial, time.monotonic_ns())
        facts.group(GroupInfo("0", (0,)))

    def handler(number: int, frame: object) -> None:
        nonlocal handled
        handled += 1
        guard.run(record, 1_000_000 + handled)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.001)
    calls, until = 0, time.monotonic() + 30
    try:
        while handled < SIGNALS and time.monotonic() < until:
            guard.run(record, calls)
            calls += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    file.close()
    facts.close()

    assert handled >= SIGNALS
    assert errors == []
    _, trace = read_rank(tmp_path / "rank00000.ddt")
    lost = calls + handled - len(trace.detail)
    assert lost <= handled  # one that is interrupted in mid-write may go, and no other
