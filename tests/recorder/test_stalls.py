"""When a rank is said to stand still, and what is told of it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.events import Kind, Op, Phase, RunInfo, Stall
from ddpdoctor.factsfile import read_facts
from ddpdoctor.recorder import stalls
from ddpdoctor.recorder.backup import Backup
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.writer import RankFile
from tests.builders import rank_info

STALL_S = 0.2


class Watched:
    """A rank whose training thread is this one, looked at by hand."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rank00000.facts.jsonl"
        self.file = RankFile(folder / "rank00000.ddt", RunInfo("r", 0, 1, "gloo"), rank_info(0, 1))
        self.phases = Phases(self.file)
        self._facts = FactsFile(self._path)
        self._backup = Backup(folder / "rank00000.stacks.txt", self._facts)
        sites = CallSites(lambda number, site: None)
        self._watch = stalls.StallWatch(self.phases, sites, self._facts, self.file, self._backup)

    def look(self) -> None:
        self._watch.look(self.phases.current, sys._getframe())

    def look_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.01)
            self.look()

    @property
    def stall(self) -> Stall | None:
        return read_facts(self._path).stall

    @property
    def written(self) -> int:
        """Each stall twice: at once, and with the sources."""
        return self._path.read_text().count('"stall"')

    def close(self) -> None:
        self._backup.close()
        self.phases.finish()
        self.file.close()
        self._facts.close()


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(stalls, "STALL_S", STALL_S)
    made = Watched(tmp_path)
    yield made
    made.close()


def issue(rank: Watched, seq: int) -> int:
    return rank.file.add(
        Kind.COLLECTIVE, Op.ALL_REDUCE, 0, 0, 3, 3, seq, 1, -1, 0, -1, time.monotonic_ns(), 0, 0, 64
    )


def test_a_pending_collective_is_told_once_and_again_when_it_goes_on(rank: Watched) -> None:
    rank.phases.step = 3
    serial = issue(rank, 8)
    rank.look_for(3 * STALL_S)

    stall = rank.stall
    assert stall is not None
    assert (stall.step, stall.phase) == (3, Phase.BETWEEN)
    (call,) = stall.pending
    assert (call.group, call.seq, call.op, call.nbytes) == (1, 8, Op.ALL_REDUCE, 64)
    assert call.seconds >= STALL_S
    assert rank.written == 2

    rank.file.finish(serial, time.monotonic_ns())
    issue(rank, 9)
    rank.look()
    assert rank.stall is None
    assert rank.written == 3

    rank.look_for(2 * STALL_S)
    assert rank.stall is not None
    assert rank.stall.pending[0].seq == 9
    assert rank.written == 5


def test_every_thread_with_a_line_of_the_users_is_told(rank: Watched) -> None:
    leave = threading.Event()
    thread = threading.Thread(target=lambda: leave.wait(10), name="uploader")
    thread.start()
    try:
        rank.look_for(3 * STALL_S)
    finally:
        leave.set()
        thread.join()

    assert rank.stall is not None
    lines = {each.name: each.sites for each in rank.stall.threads}
    assert lines["uploader"][0].file == __file__
    assert "look_for" in {site.function.rsplit(".")[-1] for site in lines["MainThread"]}


def test_a_rank_that_computes_does_not_stand_still(rank: Watched) -> None:
    until = time.monotonic() + 4 * STALL_S
    while time.monotonic() < until:
        sum(range(20_000))
        rank.look()

    assert rank.stall is None
    assert rank.written == 0


def test_a_rank_that_records_does_not_stand_still(rank: Watched) -> None:
    for seq in range(20):
        rank.file.finish(issue(rank, seq), time.monotonic_ns())
        rank.look_for(STALL_S / 8)

    assert rank.written == 0
