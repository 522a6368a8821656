"""Standard output and error: any string can be written to them, and their reader may leave."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def accept_any_text() -> None:
    """What the encoding cannot express is written as its escape, in place of an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Output whose reader may go away early, as `head` does: the rest goes nowhere."""
    try:
        yield
    except BrokenPipeError:
        _flush_what_is_read()
    else:
        _flush_what_is_read()


def _flush_what_is_read() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _to_nowhere(stream)


def _to_nowhere(stream: TextIO) -> None:
    """So that the interpreter's own flush at exit does not fail either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
