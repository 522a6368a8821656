"""What faulthandler wrote, read as a foreign file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpdoctor.events import Site
from ddpdoctor.laststacks import MAX_BYTES, MAX_FRAMES, LastStacks, read_last_stacks

WRITTEN = """\
Thread 0x00007fe60baef6c0 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 5 in backward
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007fe60ca4ab80 (most recent call first):
  File "/home/user/data.py", line 41 in read
  File "/home/user/train.py", line 7 in <module>
Stack (most recent call first):
  File "/home/user/train.py", line 9 in save
"""


def test_the_users_lines_of_each_thread(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    path.write_text(WRITTEN, encoding="utf-8")

    read = read_last_stacks(path)

    assert read.at_sigterm == (Site("/home/user/train.py", 9, "save"),)
    (stack,) = read.stuck
    assert [site.line for site in stack] == [41, 7]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 1000,
        b'  File "/x.py", line 1 in f\n' * 1000,  # of no stack
        b"Stack (most recent call first):\n" + b'  File "' + b"x" * 100_000,
        b"Thread 0x" + b"0" * 100_000,
    ],
    ids=range(4),
)
def test_what_is_not_understood_is_passed_over(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    path.write_bytes(content)

    read = read_last_stacks(path)

    assert read.stuck == ()
    assert read.at_sigterm in (None, ())


def test_it_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    path.write_text("Stack (most recent call first):\n" + '  File "/x.py", line 1 in f\n' * 10**5)
    assert path.stat().st_size > MAX_BYTES

    at_sigterm = read_last_stacks(path).at_sigterm

    assert at_sigterm is not None
    assert len(at_sigterm) == MAX_FRAMES


def test_no_file_and_a_pipe_in_its_place_are_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert read_last_stacks(tmp_path / "none") == LastStacks()
    assert read_last_stacks(tmp_path / "pipe") == LastStacks()
