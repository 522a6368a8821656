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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ddpdoctor.events import Int64
from ddpdoctor.hang.snapshot import PendingEntry

ANSWER_S: Final = 1.0  # for connecting and the whole answer; it takes some milliseconds
MAX_BYTES: Final = 8 * 1024 * 1024  # 2,000 entries take 0.8 MB
MAX_PENDING: Final = 64
MAX_SIZES: Final = 8  # tensors of one entry
PARALLEL: Final = 8
_READ: Final = 64 * 1024
_REQUEST: Final = (
    b"POST /handler/fr_trace_json HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)
_Short = Annotated[str, msgspec.Meta(max_length=200)]


@dataclass(frozen=True)
class _Entry:
    """One collective of torch's flight recorder; the names are torch's."""

    process_group: Annotated[list[_Short], msgspec.Meta(min_length=1, max_length=4)]
    collective_seq_id: Int64
    p2p_seq_id: Int64
    is_p2p: bool
    profiling_name: _Short
    input_sizes: list[list[Int64]]
    time_created_ns: Int64
    retired: bool
    state: _Short


@dataclass(frozen=True)
class _Dump:
    entries: list[_Entry] = field(default_factory=list)


def ask_all(sockets: dict[int, str]) -> dict[int, tuple[PendingEntry, ...] | None]:
    """What is pending on each rank, by pid; None where no answer could be had."""
    if not sockets:
        return {}
    with ThreadPoolExecutor(PARALLEL) as pool:
        answers = pool.map(pending_of, sockets.values())
        return dict(zip(sockets, answers, strict=True))


def pending_of(path: str) -> tuple[PendingEntry, ...] | None:
    """The collectives that the rank behind a socket has issued and that are not done."""
    try:
        body = _body_of(_answer(path))
        dump = msgspec.json.decode(body, type=_Dump)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    if not dump.entries:  # nothing was issued yet, or the flight recorder is switched off
        return None
    return tuple(_pending(dump))


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


def _pending(dump: _Dump) -> Iterator[PendingEntry]:
    now_ns = time.time_ns()
    pending = [entry for entry in dump.entries if not entry.retired]
    for entry in pending[-MAX_PENDING:]:
        yield PendingEntry(
            entry.process_group[0],
            max(0, (entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id) - 1),
            entry.profiling_name.rpartition(":")[2],
            tuple(tuple(size[:MAX_SIZES]) for size in entry.input_sizes[:MAX_SIZES]),
            entry.state,
            max(0.0, (now_ns - entry.time_created_ns) / 1e9),
        )
