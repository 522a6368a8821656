"""What TCP sockets of this host have moved, as `ss -ti` asks the kernel; /proc does not count it.

Sockets of another network namespace are not seen: of a process that lives in one nothing is said.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NETLINK_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_DONE: Final = 3
_ERROR: Final = 2
_REQUEST_DUMP: Final = 0x301
_TCP_INFO: Final = 2  # of the attributes of an answer
_STATES: Final = 0xFFF & ~(1 << 10)  # all but those that listen
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI48x")
_MESSAGE: Final = struct.Struct("=BBBB4s16s16s12xIIIII")  # struct inet_diag_msg
_ATTRIBUTE: Final = struct.Struct("=HH")
_MOVED: Final = struct.Struct("=QQ")  # tcpi_bytes_acked, tcpi_bytes_received
_MOVED_AT: Final = 120  # in struct tcp_info
_TIMEOUT_S: Final = 0.5
_MOST: Final = 200_000  # sockets of a host
_BUFFER: Final = 256 * 1024
_SOCKET: Final = re.compile(r"socket:\[(\d{1,12})\]")


@dataclass(frozen=True)
class Traffic:
    """What one TCP socket has moved so far, and what waits in it."""

    moved: int  # bytes that were acknowledged to it, and that it got
    unsent: int  # bytes that the other side has not acknowledged
    peer: str  # address:port


def traffic() -> dict[int, Traffic] | None:
    """Of the TCP connections of this network namespace, by inode; None where none are told."""
    found: dict[int, Traffic] = {}
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as asked:
                asked.settimeout(_TIMEOUT_S)
                asked.send(_question(family))
                found.update(_answers(asked))
    except (OSError, AttributeError, struct.error, ValueError):
        return None
    return found


def inodes_of(folder: Path) -> frozenset[int] | None:
    """The sockets that a process has open, by its folder in /proc; None where it may not be read.

    So, too, where it lives in another network namespace than this one.
    """
    try:
        if os.readlink(folder / "ns" / "net") != os.readlink("/proc/self/ns/net"):
            return None
        with os.scandir(folder / "fd") as entries:
            links = [_link(entry.path) for entry in entries]
    except OSError:
        return None
    return frozenset(int(found[1]) for link in links if (found := _SOCKET.fullmatch(link)))


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def _question(family: int) -> bytes:
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 0, _STATES)
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST_DUMP, 1, 0) + body


def _answers(asked: socket.socket) -> Iterator[tuple[int, Traffic]]:
    seen = 0
    while seen < _MOST:
        data = asked.recv(_BUFFER)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, at)
            if kind in (_DONE, _ERROR) or length < _HEADER.size:
                return
            yield _read(data[at + _HEADER.size : at + length])
            seen += 1
            at += (length + 3) & ~3


def _read(message: bytes) -> tuple[int, Traffic]:
    """One answer: a socket, and its attributes behind that."""
    family, _, _, _, ports, _, remote, _, _, unsent, _, inode = _MESSAGE.unpack_from(message)
    size = 4 if family == socket.AF_INET else 16
    address = socket.inet_ntop(family, remote[:size])
    peer = f"{address}:{int.from_bytes(ports[2:], 'big')}"
    moved, at = 0, _MESSAGE.size
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            break
        inside = message[at + _ATTRIBUTE.size : at + length]
        if kind == _TCP_INFO and len(inside) >= _MOVED_AT + _MOVED.size:
            moved = sum(_MOVED.unpack_from(inside, _MOVED_AT))
        at += (length + 3) & ~3
    return inode, Traffic(moved, unsent, peer)
