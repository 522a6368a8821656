"""Frames of a stack, as they are seen from outside or as a rank notes its own. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_STANDARD_LIBRARY: Final = re.compile(r"/lib(64)?/python3\.\d+/")
_RECORDER: Final = "/ddpdoctor/recorder/"
_TORCH_SOURCE: Final = re.compile(r"/torch/(distributed|autograd|nn/parallel)/")  # built in place


class Origin(StrEnum):
    """Whose code a frame runs."""

    USER = "user"
    LIBRARY = "library"  # installed, neither Python's nor torch's: a trainer, a data set
    TORCH = "torch"
    PYTHON = "python"
    RECORDER = "recorder"  # ours, between the script and torch


@dataclass(frozen=True)
class Loop:
    """A `for` or `while` statement, first to last line of it."""

    begin: int
    end: int

    def __contains__(self, line: int) -> bool:
        return self.begin <= line <= self.end


@dataclass(frozen=True)
class Condition:
    """An `if` that decides whether a line is reached: around it, or one that leaves before it."""

    line: int
    text: str  # of the test
    by_rank: bool  # it asks for the rank, so that not all ranks come there
    leaves: bool = False  # it returns or goes on before the line


@dataclass(frozen=True)
class Frame:
    """One call. What follows the origin was read for live ranks; loops are outermost first."""

    file: str
    line: int
    function: str
    origin: Origin
    text: str | None = None
    loops: tuple[Loop, ...] = ()
    in_handler: bool = False  # the line belongs to an `except` block
    condition: Condition | None = None  # the innermost; one by the rank before others

    @property
    def is_user(self) -> bool:
        return self.origin is Origin.USER

    @property
    def is_script(self) -> bool:
        """Code that decides what is called next: the user's, or a trainer that runs it."""
        return self.origin in (Origin.USER, Origin.LIBRARY)


def origin_of(file: str) -> Origin:
    """Whose code a file is, judged by where it lies."""
    if _RECORDER in file:
        return Origin.RECORDER
    for folder in ("site-packages/", "dist-packages/"):
        if folder in file:
            package = file.rpartition(folder)[2].split("/", 1)[0]
            return Origin.TORCH if package == "torch" else Origin.LIBRARY
    if file.startswith("<") or _STANDARD_LIBRARY.search(file):
        return Origin.PYTHON
    return Origin.TORCH if _TORCH_SOURCE.search(file) else Origin.USER
