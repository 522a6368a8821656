"""From which step on a rank records: windows, amendments, and files of ill will."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.analysis.recorded import recorded, recorded_notes
from ddpdoctor.events import PROGRESS
from ddpdoctor.recorder.switch import ControlFile, RecordingSwitch
from ddpdoctor.schedule import (
    CONTROL_BYTES,
    MOST_SWITCHES,
    Schedule,
    Steps,
    Switch,
    control_bytes,
    read_control,
)
from tests.builders import StepTimes, simulate, with_ranks

ON, OFF = True, False


def are_recorded(schedule: Schedule, steps: range) -> list[int]:
    return [step for step in steps if schedule.at(step).on]


def test_a_window_has_both_its_ends() -> None:
    assert are_recorded(Schedule.of(None), range(1, 4)) == [1, 2, 3]
    assert are_recorded(Schedule.of(Steps(3, 5)), range(1, 9)) == [3, 4, 5]
    assert are_recorded(Schedule.of(Steps(1, 2)), range(1, 9)) == [1, 2]
    assert are_recorded(Schedule.of(Steps(7, None)), range(1, 9)) == [7, 8]


def test_what_is_told_replaces_what_was_to_come() -> None:
    window = Schedule.of(Steps(10, 20))

    off = window.amended((Switch(15, OFF),))
    for_three_steps = off.amended((Switch(17, ON), Switch(20, OFF)))

    assert are_recorded(off, range(1, 30)) == [10, 11, 12, 13, 14]
    assert are_recorded(for_three_steps, range(1, 30)) == [10, 11, 12, 13, 14, 17, 18, 19]
    assert window.amended(()) == window


@given(
    st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=8),
    st.none() | st.tuples(st.integers(1, 30), st.integers(0, 30)),
)
def test_ranks_that_heard_at_different_times_record_the_same_steps(
    told: list[tuple[int, bool]], window: tuple[int, int] | None
) -> None:
    """One hears each amendment, the other only the last file, which holds what is still to come."""
    start = Schedule.of(Steps(window[0], sum(window)) if window else None)
    attentive, file = start, Schedule()
    for sync, on in told:
        file = file.amended((Switch(sync, on),))
        attentive = attentive.amended(file.switches)

    late = start.amended(read_control(control_bytes(file.switches)))

    first_told = min((sync for sync, _ in told), default=1)
    assert are_recorded(attentive, range(first_told, 70)) == are_recorded(
        late, range(first_told, 70)
    )


def test_a_rank_misses_nothing_of_the_first_step_and_ends_with_the_last() -> None:
    """The next step is known only once its forward begins; its input comes before that."""
    turned: list[Switch] = []
    switch = RecordingSwitch(Schedule.of(Steps(3, 3)), turned.append)
    states = []
    for sync in (2, 3, 4, 5):
        switch.look_ahead(sync)  # the optimizer of the step before has stepped
        ahead = switch.on
        switch.step_begins(sync)  # the forward begins
        states.append((sync, ahead, switch.on))

    assert states == [(2, OFF, OFF), (3, ON, ON), (4, ON, OFF), (5, OFF, OFF)]
    assert turned == [Switch(1, OFF), Switch(3, ON), Switch(4, OFF)]


HOSTILE = [
    b"",
    b"{",
    b"\xff" * 100,
    b"[" * CONTROL_BYTES,
    b" " * (CONTROL_BYTES + 1),
    json.dumps({"schema_version": 2, "switches": []}).encode(),
    *(
        json.dumps({"schema_version": 1, "switches": switches}).encode()
        for switches in (
            [{"sync": 0, "on": True}],
            [{"sync": 2**60, "on": True}],
            [{"sync": 5, "on": 1}],
            [{"sync": 5.5, "on": True}],
            [{"sync": 5, "on": True, "detail_every": 0}],
            [{"sync": 5, "on": True, "detail_every": 10**9}],
            [{"sync": 5, "on": True}, {"sync": 5, "on": False}],
            [{"sync": 5, "on": True}, {"sync": 4, "on": False}],
            [{"sync": n + 1, "on": True} for n in range(MOST_SWITCHES + 1)],
        )
    ),
]


@pytest.mark.parametrize("raw", HOSTILE, ids=range(len(HOSTILE)))
def test_a_control_file_of_ill_will_is_refused(raw: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, ValueError, RecursionError)):
        read_control(raw)


class Rank:
    """One rank that listens, with its step set by hand."""

    def __init__(self, folder: Path, steps: Steps | None = None) -> None:
        self.step = 1
        self.notes: list[str] = []
        self.published = b""
        self.path = folder / "control.json"
        self.switch = RecordingSwitch(Schedule.of(steps), lambda switch: None)
        self.control = ControlFile(
            self.path, self.switch, lambda: self.step, self.publish, self.notes.append
        )

    def publish(self, raw: bytes) -> None:
        self.published = raw

    @property
    def heard(self) -> int:
        return int(PROGRESS.unpack(self.published)[2])


def test_a_rank_hears_says_where_it_is_and_tells_when_it_was_too_late(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.control.poll()
    assert rank.heard == 0

    rank.path.write_bytes(control_bytes((Switch(5, OFF), Switch(9, ON))))
    rank.step = 7
    rank.control.poll()

    assert PROGRESS.unpack(rank.published)[0] == 7
    assert rank.heard != 0
    assert are_recorded(rank.switch.schedule, range(1, 12)) == [1, 2, 3, 4, 9, 10, 11]
    (note,) = rank.notes
    assert "heard in step 7 that recording goes off with step 5: too late" in note


def test_files_that_cannot_be_used_change_nothing_and_are_noted_a_few_times(
    tmp_path: Path,
) -> None:
    rank = Rank(tmp_path)
    for raw in HOSTILE:
        rank.path.unlink(missing_ok=True)
        rank.path.write_bytes(raw)
        rank.control.poll()
    rank.path.unlink()
    os.mkfifo(rank.path)  # would block who opens it
    rank.control.poll()

    assert rank.switch.on
    assert rank.switch.schedule == Schedule()
    assert rank.heard == 0
    assert 1 <= len(rank.notes) <= 5


@pytest.mark.skipif(os.getuid() != 0, reason="giving a file to another user needs root")
def test_a_file_of_another_user_is_not_obeyed(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.path.write_bytes(control_bytes((Switch(1, OFF),)))
    os.chown(rank.path, 12345, 12345)

    rank.control.poll()

    assert rank.switch.schedule == Schedule()
    assert "belongs to another user" in rank.notes[0]


def test_the_report_says_which_steps_were_recorded() -> None:
    switches = (Switch(1, OFF), Switch(20, ON), Switch(51, OFF), Switch(80, ON))
    run = simulate(lambda rank, step: StepTimes(), 2, 5)

    def with_switches(ranks: dict[int, tuple[Switch, ...]]) -> tuple[str, ...]:
        return recorded_notes(
            with_ranks(run, lambda t: replace(t, switches=ranks.get(t.info.rank, ())))
        )

    assert recorded(switches) == ((20, 50), (80, None))
    assert with_switches({}) == ()
    assert with_switches({0: switches, 1: switches}) == (
        "recorded steps 20 to 50, 80 to the end; in the other steps recording was off",
    )
    assert with_switches({1: switches[:1]})[1] == (
        "rank 1: recorded no step; in the other steps recording was off"
    )
