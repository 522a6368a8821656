"""Bytes that TCP connections move between two looks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ddpdoctor.hang.snapshot import Unsent
from ddpdoctor.hang.sockets import inodes_of, traffic
from tests.hang_builders import (
    ALL_REDUCE,
    STILL,
    at,
    codes,
    only_finding,
    snapshot,
    user,
)

MIB = 2**20


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection; skipped where the kernel tells nothing of them."""
    if traffic() is None:
        pytest.skip("the kernel answers no question for sockets here")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            yield one, other


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_connection_has_moved_is_told_of_both_ends(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, other = pair
    inodes = [os.fstat(end.fileno()).st_ino for end in pair]
    before = traffic() or {}

    one.sendall(b"x" * 50_000)
    other.recv(50_000, socket.MSG_WAITALL)

    def moved() -> list[int]:
        after = traffic() or {}
        return [after[inode].moved - before[inode].moved for inode in inodes]

    until(lambda: moved() == [50_000, 50_000])
    assert inodes_of(Path("/proc/self")) >= set(inodes)  # type: ignore[operator]
    assert before[inodes[0]].peer == f"127.0.0.1:{other.getsockname()[1]}"


def test_bytes_that_the_other_side_does_not_take(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    one, _ = pair
    one.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            one.send(b"x" * MIB)

    inode = os.fstat(one.fileno()).st_ino
    until(lambda: (traffic() or {})[inode].unsent > 0)


def test_processes_that_may_not_be_read_or_are_gone_say_nothing(tmp_path: Path) -> None:
    assert inodes_of(tmp_path / "no such process") is None
    (tmp_path / "ns").mkdir()
    (tmp_path / "ns" / "net").symlink_to("net:[1]")  # another network
    (tmp_path / "fd").mkdir()
    assert inodes_of(tmp_path) is None


def test_a_rank_whose_bytes_flow_is_slow_and_not_stuck() -> None:
    """Its threads sleep nearly always: a link of 1 MB/s needs no CPU."""
    flows = replace(STILL, socket_bytes=MIB)
    stuck = replace(STILL, socket_bytes=200)  # heartbeats of a store

    slow = snapshot(*(at(rank, *ALL_REDUCE, user(30), movement=flows) for rank in (0, 1)))
    code, finding = only_finding(slow)

    assert code == "DD906"
    assert "1 MB over TCP" in str(finding.evidence)
    hung = snapshot(*(at(rank, *ALL_REDUCE, user(30), movement=stuck) for rank in (0, 1)))
    assert codes(hung) == ["DD908"]


def test_whose_bytes_wait_is_told() -> None:
    waits = at(0, *ALL_REDUCE, user(30), unsent=(Unsent("10.0.0.7:4711", 3 * MIB),))

    _, finding = only_finding(snapshot(waits, at(1, *ALL_REDUCE, user(30))))

    said = [str(each.value) for each in finding.evidence if each.what == "rank 0"]
    assert "3.1 MB wait to be taken by 10.0.0.7:4711" in said
