"""`ddpdoctor record` and two ranks that listen, all in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddpdoctor.errors import CannotSwitch
from ddpdoctor.events import PROGRESS, GroupInfo, Kind, Op
from ddpdoctor.hang.records import collectives_of
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.switch import ControlFile, RecordingSwitch
from ddpdoctor.recorder.writer import RankFile
from ddpdoctor.schedule import Schedule, Switch
from ddpdoctor.switching import switch_recording
from ddpdoctor.tracefile import read_rank
from tests.test_writer_and_tracefile import open_file, rank_path


class Listening:
    """A rank that takes a step in 10 ms."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.file: RankFile = open_file(folder, rank, detail_bytes=64 * 64)
        self.switch = RecordingSwitch(Schedule(), lambda switch: None)
        self.step = 1
        self.notes: list[str] = []
        self.control = ControlFile(
            self.file.path.parent / "control.json",
            self.switch,
            lambda: self.step,
            self.file.progress,
            self.notes.append,
        )
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.train, daemon=True)

    def train(self) -> None:
        while not self.stop.wait(0.01):
            self.step += 1
            self.switch.step_begins(self.step)
            if self.step % 10 == 0:
                self.control.poll()


@contextmanager
def listening(folder: Path) -> Iterator[list[Listening]]:
    ranks = [Listening(folder, rank) for rank in range(2)]
    for rank in ranks:
        rank.thread.start()
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.stop.set()
            rank.thread.join(timeout=10)
            rank.file.close()


def test_all_ranks_switch_with_one_step_that_lies_ahead(tmp_path: Path) -> None:
    with listening(tmp_path) as ranks:
        off = switch_recording(tmp_path / "run-1", on=False)
        on = switch_recording(tmp_path / "run-1", on=True, steps=100, detail_every=5)
        newest = max(rank.step for rank in ranks)

    assert off.silent == on.silent == ()
    assert off.ranks == (0, 1)
    assert newest < off.first < on.first
    expected = Schedule(
        (Switch(off.first, on=False), Switch(on.first, True, 5), Switch(on.first + 100, on=False))
    )
    assert [rank.switch.schedule for rank in ranks] == [expected, expected]
    assert [rank.notes for rank in ranks] == [[], []]
    assert [path.name for path in rank_path(tmp_path).parent.glob(".*")] == []


def test_a_run_that_has_ended_cannot_be_switched(tmp_path: Path) -> None:
    with listening(tmp_path):
        pass

    with pytest.raises(CannotSwitch, match="has ended"):
        switch_recording(tmp_path / "run-1", on=False)


def test_an_impossible_step_in_a_file_is_not_believed(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.progress(PROGRESS.pack(2**64 - 1, 1000, 0))

    with pytest.raises(CannotSwitch, match="impossible step"):
        switch_recording(tmp_path / "run-1", on=False)

    file.close()
    assert not (rank_path(tmp_path).parent / "control.json").exists()


@pytest.mark.parametrize(("on", "known"), [(True, 1), (False, 0)])
def test_a_look_at_a_hang_does_not_take_an_old_record_for_the_present(
    on: bool, known: int, tmp_path: Path
) -> None:
    file = open_file(tmp_path)
    facts = FactsFile(file.path.with_suffix(".facts.jsonl"))
    facts.group(GroupInfo("0", (0, 1)))
    file.add(Kind.COLLECTIVE, Op.ALL_REDUCE, 0, 0, 3, 3, 7, 0, -1, 0, -1, 100, 0, 0, 4)
    facts.switched(Switch(4, on))

    _, trace = read_rank(file.path)
    last = collectives_of(trace)

    assert [each.seq for each in last] == [7] * known
    facts.close()
    file.close()
