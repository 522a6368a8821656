"""How an end is told, and that the hooks for it go as they came."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ddpdoctor.events import End, EndKind, Phase, RunInfo
from ddpdoctor.factsfile import Facts, read_facts
from ddpdoctor.recorder.ending import MAX_MESSAGE, Ending, masked
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.writer import RankFile
from tests.builders import rank_info


class Recording:
    """The parts of a recorder that note an end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rank00000.facts.jsonl"
        self.file = RankFile(folder / "rank00000.ddt", RunInfo("r", 0, 1, "gloo"), rank_info(0, 1))
        self.phases = Phases(self.file)
        self.errors: list[Exception] = []
        self.facts_file = FactsFile(self.path)
        self.ending = Ending(self.phases, self.facts_file, Guard(self.errors.append))

    def close(self) -> None:
        self.phases.finish()
        self.file.close()
        self.facts_file.close()

    @property
    def facts(self) -> Facts:
        return read_facts(self.path)

    @property
    def end(self) -> End:
        assert self.facts.end is not None
        return self.facts.end


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    made = Recording(tmp_path)
    yield made
    made.ending.remove()
    made.close()
    assert made.errors == []


def test_credentials_are_masked_and_messages_bounded() -> None:
    for said, kept in (
        ("password=hunter2 was refused", "password=(masked) was refused"),
        ('{"api_key": "abc", "user": "me"}', '{"api_key": "(masked)", "user": "me"}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer (masked)"),
        ("https://me:pw@host/x", "https://(masked)@host/x"),
        ("bad token hf_abcdefghijklmnop", "bad token (masked)"),
        ("key error: 'conv1.weight'", "key error: 'conv1.weight'"),
        ("mat1 and mat2 shapes cannot be multiplied (2x8 and 4x4)",) * 2,
    ):
        assert masked(said) == kept
    assert len(masked("x" * 10**6)) == MAX_MESSAGE


def test_a_phase_and_the_line_that_raised_are_told(recording: Recording) -> None:
    recording.phases.begin(Phase.BACKWARD, 0)
    before = sys.excepthook
    try:
        raise ValueError("no such label")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)

    assert before is sys.excepthook
    end = recording.end
    assert (end.kind, end.error, end.phase) == (EndKind.EXCEPTION, "ValueError", Phase.BACKWARD)
    assert end.site is not None
    assert end.site.file == __file__


def test_a_message_that_raises_is_none(recording: Recording) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    sys.excepthook(Odd, Odd(), None)

    assert (recording.end.error, recording.end.message) == ("Odd", "")


def test_exit_within_except_ends_for_the_exception(recording: Recording) -> None:
    """So do torch.multiprocessing's ranks, and scripts that log the error first."""
    with pytest.raises(SystemExit):  # noqa: PT012
        try:
            raise KeyError("conv1")
        except KeyError:
            sys.exit(1)
    recording.ending.note_if_none()

    assert (recording.end.kind, recording.end.error) == (EndKind.EXCEPTION, "KeyError")


def test_an_exit_that_was_caught_is_no_end(recording: Recording) -> None:
    with pytest.raises(SystemExit):
        sys.exit(3)
    recording.phases.step += 1
    recording.ending.note_if_none()

    assert recording.end.kind is EndKind.RETURNED


@pytest.mark.parametrize(
    ("given", "status"), [(3, 3), (None, 0), ("a message", 1), (10**30, 2**31)]
)
def test_the_status_of_an_exit(recording: Recording, given: object, status: int) -> None:
    with pytest.raises(SystemExit):
        sys.exit(given)  # type: ignore[arg-type]
    recording.ending.note_if_none()

    assert (recording.end.kind, recording.end.status) == (EndKind.EXIT, status)


def test_the_exit_of_a_thread_is_none_of_the_rank(recording: Recording) -> None:
    def leave() -> None:
        with suppress(SystemExit):
            sys.exit(3)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    recording.ending.note_if_none()

    assert recording.end.kind is EndKind.RETURNED


def test_hooks_go_as_they_came_and_those_set_later_stay(tmp_path: Path) -> None:
    before = sys.excepthook, threading.excepthook, sys.exit
    first = Recording(tmp_path)
    assert sys.exit is not before[2]
    first.ending.remove()
    assert (sys.excepthook, threading.excepthook, sys.exit) == before

    (tmp_path / "second").mkdir()
    second = Recording(tmp_path / "second")
    try:
        later = sys.excepthook = lambda *error: None
        second.ending.remove()
        assert sys.excepthook is later
    finally:
        sys.excepthook = before[0]
    for recording in (first, second):
        recording.close()
