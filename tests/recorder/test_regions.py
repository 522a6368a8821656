"""Writing at a place of the rank's file."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.recorder.regions import write_at

ROOM = 100


@pytest.fixture
def little_room() -> Iterator[None]:
    """No file may grow beyond ROOM bytes, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_finds_room_in_part_says_why(tmp_path: Path, little_room: None) -> None:
    file = tmp_path / "file"
    opened = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="too large") as caught:
            write_at(opened, bytes(150), 0)
    finally:
        os.close(opened)
    assert caught.value.errno == errno.EFBIG
    assert file.stat().st_size == ROOM
