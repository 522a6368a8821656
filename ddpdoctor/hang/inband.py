"""Asking a registered rank itself: torch's own server answers in C++, also while the GIL is held.

It gives the flight recorder's view of what is pending, beside the stack and the rank's own record.
Whoever listens on the socket is not trusted: each connect and read has a limit, so has what is
read, and an answer that is not as expected is none.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ddpdoctor.hang.snapshot import Answer, PendingEntry

ANSWER_S: Final = 1.0  # for connecting and the whole answer; it takes some milliseconds
MAX_BYTES: Final = 8 * 1024 * 1024  # 2,000 entries take 0.8 MB
PARALLEL: Final = 8
_READ: Final = 64 * 1024
_REQUEST: Final = (
    b"POST /handler/fr_trace_json HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


def ask_all(sockets: dict[int, str]) -> dict[int, Answer | None]:
    """What each rank called, by pid; None where no answer could be had."""
    if not sockets:
        return {}
    with ThreadPoolExecutor(PARALLEL) as pool:
        answers = pool.map(answer_of, sockets.values())
        return dict(zip(sockets, answers, strict=True))


def answer_of(path: str) -> Answer | None:
    """The calls of the rank behind a socket."""
    from ddpdoctor.hang.flight_recorder import told_in  # msgspec: only where there is an answer

    try:
        return told_in(_body_of(_answer(path)))
    except (OSError, ValueError):
        return None


def pending_of(path: str) -> tuple[PendingEntry, ...] | None:
    """The collectives that the rank behind a socket has issued and that are not done."""
    answer = answer_of(path)
    return answer.pending if answer else None


def is_socket_of(path: Path, uid: int | None) -> bool:
    """Whether a socket of this user lies there."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == uid


def _answer(path: str) -> bytes:
    deadline = time.monotonic() + ANSWER_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        connection.connect(os.fsencode(path))
        connection.sendall(_REQUEST)
        received = bytearray()
        while len(received) <= MAX_BYTES:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            connection.settimeout(left_s)
            part = connection.recv(_READ)
            if not part:
                return bytes(received)
            received += part
    raise ValueError("the answer is too long")


def _body_of(answer: bytes) -> bytes:
    head, separator, body = answer.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].split()
    if not separator or status[1:2] != [b"200"]:
        raise ValueError("not a good answer")
    return body
