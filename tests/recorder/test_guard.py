"""Fail open: an error of ours costs one warning and the recording, never the training."""

from __future__ import annotations

from ddpdoctor.recorder.guard import Guard


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
