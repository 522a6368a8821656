"""Answers of a rank itself: what is pending, and whatever else may sit behind a socket."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.hang import flight_recorder, inband
from ddpdoctor.hang.inband import ask_all, is_socket_of, pending_of

Serve = Callable[[Callable[[socket.socket], None]], str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers that answer one connection each in a way of their own."""
    with ExitStack() as stack:

        def start(answer: Callable[[socket.socket], None]) -> str:
            path = str(tmp_path / f"{time.monotonic_ns()}.sock")
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(path)
            listening.listen()
            listening.settimeout(10)

            def run() -> None:
                with suppress(OSError):
                    connection, _ = listening.accept()
                    with connection:
                        connection.settimeout(10)
                        answer(connection)

            thread = threading.Thread(target=run)
            thread.start()
            stack.callback(thread.join, 20)
            return path

        yield start


def entry(**changes: object) -> dict[str, Any]:
    return {
        "process_group": ["0", "default_pg"], "collective_seq_id": 9, "p2p_seq_id": 0,
        "is_p2p": False, "profiling_name": "gloo:all_reduce", "input_sizes": [[8, 2]],
        "time_created_ns": time.time_ns() - 5 * 10**9, "retired": False, "state": "scheduled",
    } | changes  # fmt: skip


def answering(body: object, status: str = "200 OK") -> Callable[[socket.socket], None]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode() + raw)

    return answer


def test_what_is_pending_is_told_and_counted_as_our_records_do(serve: Serve) -> None:
    done = entry(collective_seq_id=8, retired=True)

    (pending,) = pending_of(serve(answering({"entries": [done, entry()]}))) or ()

    assert (pending.group, pending.seq, pending.op) == ("0", 8, "all_reduce")
    assert (pending.sizes, pending.state) == (((8, 2),), "scheduled")
    assert 5 <= pending.age_s < 60


def test_a_recorder_that_is_switched_off_is_not_taken_for_nothing_pending(serve: Serve) -> None:
    """torch then leaves the entries out."""
    assert pending_of(serve(answering({"pg_status": {}, "version": "2.10"}))) is None
    assert pending_of(serve(answering({"entries": [entry(retired=True)]}))) == ()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"no json", b"[" * 100_000, [], {"entries": 5}, {"entries": [{}]},
        {"entries": [entry(collective_seq_id=2**70)]},
        {"entries": [entry(profiling_name="x" * 10_000)]},
        {"entries": [entry(process_group=[])]},
        {"entries": [entry(input_sizes=["\x1b[2J"])]},
    ],
    ids=range(10),
)  # fmt: skip
def test_an_answer_that_is_not_as_expected_is_none(serve: Serve, body: object) -> None:
    assert pending_of(serve(answering(body))) is None


def test_an_error_is_none(serve: Serve) -> None:
    assert pending_of(serve(answering({"entries": []}, "500 Internal Server Error"))) is None


def test_many_pending_ones_are_bounded(serve: Serve) -> None:
    many = [entry(input_sizes=[[1] * 20] * 100)] * 300

    pending = pending_of(serve(answering({"entries": many})))

    assert pending is not None
    assert len(pending) == flight_recorder.MAX_PENDING
    assert len(pending[0].sizes) == len(pending[0].sizes[0]) == flight_recorder.MAX_SIZES


def drip(connection: socket.socket) -> None:
    for _ in range(100):
        connection.sendall(b"x")
        time.sleep(0.05)


def flood(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * 2**20)


@pytest.mark.parametrize("answer", [lambda connection: time.sleep(3), drip, flood], ids=range(3))
def test_silence_dripping_and_floods_end_in_time(serve: Serve, answer) -> None:
    path = serve(answer)
    began = time.monotonic()

    assert pending_of(path) is None
    assert time.monotonic() - began < 3 * inband.ANSWER_S


def test_all_are_asked_side_by_side(serve: Serve) -> None:
    good = serve(answering({"entries": [entry(retired=True)]}))
    silent = [serve(lambda connection: time.sleep(2)) for _ in range(4)]
    began = time.monotonic()

    answers = ask_all(dict(enumerate([good, *silent, "/nowhere/at/all.sock"])))

    assert {pid: answer and answer.pending for pid, answer in answers.items()} == {
        0: (), **dict.fromkeys(range(1, 6))
    }  # fmt: skip
    assert time.monotonic() - began < 3 * inband.ANSWER_S


def test_only_a_socket_of_that_user_is_asked(serve: Serve, tmp_path: Path) -> None:
    path = Path(serve(answering({})))
    (tmp_path / "file.sock").touch()
    (tmp_path / "link.sock").symlink_to(path)

    assert is_socket_of(path, os.getuid())
    assert not is_socket_of(path, os.getuid() + 1)
    assert not is_socket_of(path, None)
    assert not is_socket_of(tmp_path / "file.sock", os.getuid())
    assert not is_socket_of(tmp_path / "link.sock", os.getuid())
    assert pending_of(str(path)) is None  # and its server's thread ends
