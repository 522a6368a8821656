"""The line of the user's code behind a call: the innermost frame outside libraries."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final

from ddpdoctor.events import Site

MAX_FRAMES: Final = 64
_OWN_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY_FOLDERS: Final = tuple(
    {
        os.path.realpath(folder) + os.sep
        for folder in (
            *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
            _OWN_FOLDER,
        )
        if folder
    }
)


class FrameWalk:
    """Finds the innermost frame whose file is a wanted one.

    The answer for a code object is kept by its identity: to hash one is to hash its names and
    constants.
    """

    def __init__(self, is_wanted: Callable[[str], bool]) -> None:
        self._is_wanted = is_wanted
        self._known: dict[int, bool] = {}
        self._kept: list[CodeType] = []  # so that no identity is given to another one

    def innermost(self, frame: FrameType | None) -> FrameType | None:
        """At or outside `frame`; None where there is none within MAX_FRAMES.

        None, too, where the chain is broken: CPython 3.11 was seen to give a cell as `f_back`.
        """
        known = self._known
        try:
            for _ in range(MAX_FRAMES):
                if frame is None:
                    return None
                wanted = known.get(id(frame.f_code))
                if wanted is None:
                    wanted = self._learn(frame.f_code)
                if wanted:
                    return frame
                frame = frame.f_back
        except AttributeError:
            pass
        return None

    def _learn(self, code: CodeType) -> bool:
        self._kept.append(code)
        self._known[id(code)] = wanted = self._is_wanted(code.co_filename)
        return wanted


class CallSites:
    """Numbers the user's lines; `announce(id, site)` is called once for each new one."""

    def __init__(self, announce: Callable[[int, Site], None]) -> None:
        self._announce = announce
        self._ids: dict[tuple[int, int], int] = {}  # by code and line
        self.user_frame = FrameWalk(is_user_file).innermost
        self._lock = threading.RLock()  # a signal's handler may issue collectives, too
        self.recording = True  # else nothing is looked for

    def here(self, frame: FrameType | None) -> int:
        """Number of the innermost user frame at or outside `frame`; 0 where there is none."""
        if not self.recording:
            return 0
        user = self.user_frame(frame)
        if user is None:
            return 0
        key = (id(user.f_code), user.f_lineno)
        known = self._ids.get(key)
        return known if known is not None else self._number(key, site_of(user))

    def site(self, frame: FrameType | None) -> Site | None:
        user = self.user_frame(frame)
        return site_of(user) if user is not None else None

    def _number(self, key: tuple[int, int], site: Site) -> int:
        with self._lock:
            if key not in self._ids:
                number = len(self._ids) + 1
                self._announce(number, site)
                self._ids[key] = number
            return self._ids[key]


def site_of(frame: FrameType, line: int | None = None) -> Site:
    """A frame's place; `line` where another line than that it is at now is meant."""
    code = frame.f_code
    name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
    return Site(code.co_filename, frame.f_lineno if line is None else line, name)


def is_user_file(filename: str) -> bool:
    """Whether code in this file is the user's, and not Python's, a library's or ours."""
    if filename.startswith("<"):
        return False
    return not os.path.realpath(filename).startswith(_LIBRARY_FOLDERS)
