"""Opening what should be a plain file, where a name in a foreign folder may be anything."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a regular file, for reading. Raises OSError.

    Anything else is refused unopened, since a pipe would block and a device may act when it is
    opened; what takes the file's place in between is still opened without waiting.
    """
    _must_be_regular(path, os.stat(path))
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _must_be_regular(path, os.fstat(fd))
        yield fd
    finally:
        os.close(fd)


def read_up_to(path: Path, limit: int) -> bytes:
    """The content of a regular file, at most so many bytes of it. Raises OSError."""
    with opened(path) as fd, open(fd, "rb", closefd=False) as file:
        return file.read(limit)


def read_last(path: Path, limit: int) -> bytes:
    """The end of a regular file, at most so many bytes of it. Raises OSError."""
    with opened(path) as fd:
        return os.pread(fd, limit, max(0, os.fstat(fd).st_size - limit))


def _must_be_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
