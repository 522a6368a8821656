"""Stacks that Python's faulthandler wrote for a rank: at a signal, and where its lock was kept.

They are written in C, without Python's lock, and so are there where nothing of the recorder could
run. The file is foreign: it is bounded, and what is not understood is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddpdoctor.events import Site
from ddpdoctor.regular import read_up_to

STACKS_SUFFIX: Final = ".stacks.txt"  # rank00003.stacks.txt, beside the rank's file
HANGUP_SUFFIX: Final = ".sighup.txt"
MAX_BYTES: Final = 256 * 1024
MAX_FRAMES: Final = 100  # of one thread, as faulthandler bounds them itself
_BY_SIGNAL: Final = re.compile(r"Stack \(most recent call first\):")  # of one thread
_THREAD: Final = re.compile(r"(Current thread|Thread) 0x([0-9a-f]{1,16}) .{0,40}\(most recent")
_FRAME: Final = re.compile(r'  File "(.{1,4096})", line ([0-9]{1,9}) in (.{1,500})')
_LIBRARY: Final = re.compile(
    r"^<|/(site|dist)-packages/|/lib(64)?/python3\.\d+/|/ddpdoctor/recorder/"
)


@dataclass(frozen=True)
class LastStacks:
    """What stood in the file, as lines of the user's code, innermost first.

    `at_sigterm` is the stack on which SIGTERM came, None where none came; `at_sighup` ditto.
    `stuck` are the stacks of the threads that had such lines when Python's lock had not been free
    for a while.
    """

    at_sigterm: tuple[Site, ...] | None = None
    stuck: tuple[tuple[Site, ...], ...] = ()
    at_sighup: tuple[Site, ...] | None = None

    @property
    def by_signal(self) -> bool:
        """Whether a signal came that ends a process unless the script handles it."""
        return self.at_sigterm is not None or self.at_sighup is not None


@dataclass
class _Stack:
    by_signal: bool
    sites: list[Site]


def hangup_file(stacks: Path) -> Path:
    """Where the stack at SIGHUP stands, by the file of the others."""
    return stacks.with_name(stacks.name.removesuffix(STACKS_SUFFIX) + HANGUP_SUFFIX)


def read_last_stacks(path: Path) -> LastStacks:
    """The stacks in a rank's files; nothing where there is none, or none that can be read."""
    stacks = list(_stacks(_text(path)))
    hangup = list(_stacks(_text(hangup_file(path))))
    stuck = [tuple(stack.sites) for stack in stacks if not stack.by_signal and stack.sites]
    return LastStacks(_by_signal(stacks), tuple(stuck), _by_signal(hangup))


def _text(path: Path) -> str:
    try:
        return read_up_to(path, MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _by_signal(stacks: list[_Stack]) -> tuple[Site, ...] | None:
    """The last that a signal wrote."""
    return next((tuple(stack.sites) for stack in reversed(stacks) if stack.by_signal), None)


def _stacks(text: str) -> Iterator[_Stack]:
    current: _Stack | None = None
    for line in text.splitlines():
        by_signal = bool(_BY_SIGNAL.match(line))
        if by_signal or _THREAD.match(line):
            if current is not None:
                yield current
            current = _Stack(by_signal, [])
        elif current is not None and len(current.sites) < MAX_FRAMES:
            frame = _FRAME.match(line)
            if frame and not _LIBRARY.search(frame[1]):
                current.sites.append(Site(frame[1], int(frame[2]), frame[3]))
    if current is not None:
        yield current
