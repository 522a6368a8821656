"""The note of a call of init_process_group: what it was asked for, and what becomes of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from ddpdoctor.launchfacts import Joining, Outcome, Process
from ddpdoctor.launchrecord import FOLDER, read_launch
from ddpdoctor.recorder import joinwatch
from ddpdoctor.recorder.joinwatch import Asked, asked

TORCHRUNS = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
LISTENS = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As under `ddpdoctor run`; the folder of the run."""
    monkeypatch.setenv("DDPDOCTOR_DIR", str(tmp_path))
    monkeypatch.setenv("DDPDOCTOR_RUN_ID", "run")
    monkeypatch.setattr(joinwatch._State, "watch", None)
    monkeypatch.setattr(joinwatch._State, "recording", False)
    monkeypatch.setattr(joinwatch._State, "joined", set())
    yield tmp_path / "run"
    if joinwatch._State.watch is not None:
        joinwatch._State.watch.forget()


def noted(run: Path) -> tuple[Process, Joining]:
    (facts,) = read_launch(run).meetings
    (process,) = facts.processes
    assert process.joining is not None
    return process, process.joining


def joins(**arguments: object) -> joinwatch.JoinWatch:
    watch = joinwatch.begin(dist.init_process_group, ("gloo",), arguments)
    assert watch is not None
    return watch


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, Asked(1, 2, "node0:29500", False)),
        ({"rank": 0, "world_size": 3}, Asked(0, 3, "node0:29500", False)),
        (
            {"init_method": "tcp://10.0.0.1:7000", "rank": 0, "world_size": 2},
            Asked(0, 2, "10.0.0.1:7000", True),
        ),
        (
            {"init_method": "tcp://[::1]:7000?rank=1&world_size=4"},
            Asked(1, 4, "::1:7000", True),
        ),
        (
            {"init_method": "file:///shared/meet", "rank": 3, "world_size": 4},
            Asked(3, 4, "/shared/meet", False),
        ),
        ({"init_method": "tcp://10.0.0.1:7000"}, Asked(None, None, "10.0.0.1:7000", True)),
        ({"store": object(), "rank": 0, "world_size": 2}, Asked(0, 2, "", False)),
    ],
)
def test_what_a_call_asks_for(arguments: dict[str, object], expected: Asked) -> None:
    assert asked(dist.init_process_group, ("gloo",), arguments, TORCHRUNS) == expected


def test_a_file_is_no_port() -> None:
    assert Asked(0, 1, "/shared/meet:7", False).port is None
    assert Asked(0, 1, "::1:7000", True).port == 7000


def test_a_rank_beyond_the_world_size_is_a_problem() -> None:
    assert Asked(1, 1, "", False).problems == ("rank=1 is not below world_size=1",)
    assert Asked(1, None, "", False).problems == ()


def test_a_call_is_noted_before_it_comes_back_and_when_it_has(launched: Path) -> None:
    watch = joins(init_method="file:///meet", rank=0, world_size=1)
    process, waits = noted(launched)
    joinwatch.ended(watch, None)
    _, joined = noted(launched)

    assert (process.rank, process.world_size, process.pid) == (0, 1, os.getpid())
    assert (waits.outcome, joined.outcome) == (Outcome.WAITS, Outcome.JOINED)
    assert waits.seconds is None
    assert joined.seconds is not None


def test_a_further_group_at_the_same_place_is_noted_as_such(launched: Path) -> None:
    told = []
    for name in ("meet", "elsewhere", "meet"):
        watch = joins(init_method=f"file:///{name}", rank=0, world_size=1)
        told.append(noted(launched)[1].again)
        joinwatch.ended(watch, None)

    assert told == [False, False, True]


def test_an_error_is_noted_masked_and_with_facts_of_the_node(launched: Path) -> None:
    watch = joins(rank=0, world_size=1)
    joinwatch.ended(watch, RuntimeError("refused at https://me:pw@host/x"))

    process, failed = noted(launched)

    assert (failed.outcome, failed.error) == (Outcome.FAILED, "RuntimeError")
    assert failed.message == "refused at https://(masked)@host/x"
    assert process.limits.open_files is not None
    assert process.network.interfaces


def test_what_a_signals_handler_raises_is_no_failure(launched: Path) -> None:
    watch = joins(rank=0, world_size=1)
    joinwatch.ended(watch, KeyboardInterrupt())

    call = noted(launched)[1]
    assert (call.outcome, call.error) == (Outcome.ENDED, "KeyboardInterrupt")


def test_a_call_that_takes_long_is_looked_at(
    launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else listens where rank 0 should."""
    monkeypatch.setattr(joinwatch, "LOOK_AFTER_S", 0.05)
    with subprocess.Popen(
        [sys.executable, "-c", LISTENS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        joins(init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
        deadline = time.monotonic() + 20
        while noted(launched)[1].waited_s == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert other.stdin is not None
        other.stdin.close()

    process, waits = noted(launched)

    assert waits.waited_s > 0
    assert waits.holder is not None
    assert (waits.holder.port, waits.holder.pid) == (port, other.pid)
    assert process.limits.open_files is not None


def test_this_process_may_listen_itself(launched: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        watch = joins(init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
        joinwatch.ended(watch, RuntimeError("timed out"))

    assert noted(launched)[1].holder is None


def test_where_a_model_is_recorded_the_note_goes(launched: Path) -> None:
    joins(rank=0, world_size=1)
    joinwatch.forget()

    assert not launched.exists()
    assert joinwatch.begin(dist.init_process_group, (), {"rank": 0, "world_size": 1}) is None


def test_the_note_of_another_rank_stays(launched: Path) -> None:
    joins(rank=0, world_size=2)
    (launched / FOLDER / "0-node1-7.json").touch()
    joinwatch.forget()

    assert [path.name for path in (launched / FOLDER).iterdir()] == ["0-node1-7.json"]


@pytest.mark.parametrize(
    ("variable", "value"), [("DDPDOCTOR_DISABLE", "1"), ("DDPDOCTOR_RUN_ID", "../elsewhere")]
)
def test_nothing_is_noted_where_nothing_is_recorded(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    assert joinwatch.begin(dist.init_process_group, (), {}) is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("gloo",), {"no_such": 1}), ((), {"init_method": "tcp://host:port"}), ((1,) * 20, {})],
)
def test_a_call_that_torch_refuses_is_left_to_torch(
    arguments: tuple[object, ...], named: dict[str, object]
) -> None:
    assert joinwatch.begin(dist.init_process_group, arguments, named) is None


def test_a_folder_that_cannot_be_written_is_no_ones_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DDPDOCTOR_DIR", str(tmp_path / "file"))

    assert joinwatch.begin(dist.init_process_group, (), {}) is None
