"""When a rank is said to stand still, and what is told of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddpdoctor.events import GoneRank, Kind, Op, Phase, RunInfo, Stall
from ddpdoctor.factsfile import read_facts
from ddpdoctor.hang.processes import Processes
from ddpdoctor.recorder import lastlook, stalls
from ddpdoctor.recorder.backup import Backup
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.registration import register, start_time_ticks
from ddpdoctor.recorder.writer import RankFile
from ddpdoctor.stackframes import Frame, Origin
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


def test_the_whole_stack_is_told_with_the_loops_around_it(rank: Watched) -> None:
    rank.look_for(3 * STALL_S)

    assert rank.stall is not None
    stack = rank.stall.stack
    place = next(frame for frame in stack if frame.function.endswith("look_for"))
    lines = Path(__file__).read_text().splitlines()
    assert place.origin is Origin.USER
    assert place.text == lines[place.line - 1].strip()
    (loop,) = place.loops
    assert lines[loop.begin - 1].strip() == "while time.monotonic() < until:"
    assert any(frame.origin is Origin.LIBRARY for frame in stack)  # pytest's, which runs this


def test_it_is_told_again_once_it_has_stood_four_times_as_long(rank: Watched) -> None:
    issue(rank, 8)
    rank.look_for(12 * STALL_S)

    assert rank.written == 4
    assert rank.stall is not None
    assert rank.stall.seconds > 3 * STALL_S


def test_where_it_computes_meanwhile_what_was_told_is_taken_back(rank: Watched) -> None:
    rank.look_for(3 * STALL_S)
    assert rank.stall is not None
    until = time.monotonic() + 3 * STALL_S
    while time.monotonic() < until:
        sum(range(20_000))
        rank.look()

    assert rank.stall is None


def test_of_a_recursion_without_end_both_ends_are_told() -> None:
    def dive(depth: int) -> tuple[Frame, ...]:
        return dive(depth - 1) if depth else lastlook.frames_of(sys._getframe())

    frames = dive(500)

    assert len(frames) == 2 * lastlook.MAX_FRAMES
    assert frames[0].function.endswith("dive")
    assert not frames[-1].function.endswith("dive")


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the registration of another process as a rank."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    register(0, 3, tmp_path / "run", tmp_path / "rank00000.ddt")

    def write(pid: int, rank: int, start_ticks: int, run: str = "run") -> None:
        own = tmp_path / "ddpdoctor" / f"{os.getpid()}.json"
        facts = json.loads(own.read_text()) | {
            "pid": pid, "rank": rank, "start_time_ticks": start_ticks,
            "run_folder": str(tmp_path / run),
        }  # fmt: skip
        (own.parent / f"{pid}.json").write_text(json.dumps(facts))

    return write


def test_ranks_beside_it_that_are_gone(registered: Callable[..., None]) -> None:
    sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleeper) as killed, subprocess.Popen(sleeper) as lives:
        for rank, child in ((1, killed), (2, lives)):
            registered(child.pid, rank, start_time_ticks(child.pid))
        assert lastlook.gone_ranks(Processes()) == ()

        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert lastlook.gone_ranks(Processes()) == (GoneRank(1, killed.pid, signal=9),)

        killed.wait()
        assert lastlook.gone_ranks(Processes()) == (GoneRank(1, killed.pid),)
        lives.kill()


def test_a_process_of_the_same_number_or_of_another_run_is_none_of_them(
    registered: Callable[..., None],
) -> None:
    registered(1, 1, start_time_ticks(1) + 7)
    registered(2**22 + 1, 2, 5, run="another")

    assert lastlook.gone_ranks(Processes()) == (GoneRank(1, 1),)


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


def test_a_rank_that_writes_a_file_does_not_stand_still(rank: Watched, tmp_path: Path) -> None:
    """Slowly, and without much of a CPU: as a checkpoint goes to a network disk."""
    until = time.monotonic() + 4 * STALL_S
    with (tmp_path / "checkpoint").open("wb", buffering=0) as file:
        while time.monotonic() < until:
            file.write(bytes(100_000))
            time.sleep(0.02)
            rank.look()

    assert rank.written == 0


def test_a_rank_whose_workers_compute_does_not_stand_still(rank: Watched) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as worker:
        rank.look_for(4 * STALL_S)
        worker.kill()

    assert rank.written == 0


def test_a_rank_that_records_does_not_stand_still(rank: Watched) -> None:
    for seq in range(20):
        rank.file.finish(issue(rank, seq), time.monotonic_ns())
        rank.look_for(STALL_S / 8)

    assert rank.written == 0
