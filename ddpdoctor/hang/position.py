"""Where one rank stands relative to another, judged by their calls and the loops around them."""

from __future__ import annotations

from enum import Enum, auto

from ddpdoctor.hang.snapshot import RankProcess
from ddpdoctor.stackframes import Frame, Loop


class Position(Enum):
    """Of a rank, as seen from another."""

    SAME = auto()  # the same line of the script
    LEFT_LOOP = auto()  # past a loop in which the other still is
    IN_LOOP = auto()  # another line of a loop that both are in
    AHEAD = auto()  # further down in straight code
    BEHIND = auto()
    UNKNOWN = auto()


def script_path(rank: RankProcess) -> tuple[Frame, ...]:
    """The calls of the script, outermost first."""
    thread = rank.main_thread
    frames = thread.frames if thread else ()
    return tuple(frame for frame in reversed(frames) if frame.is_script)


def position(rank: RankProcess, other: RankProcess) -> Position:
    """Where `rank` stands as seen from `other`."""
    return position_of(script_path(rank), script_path(other))


def position_of(mine: tuple[Frame, ...], theirs: tuple[Frame, ...]) -> Position:
    """The same by the calls of both."""
    if not mine or not theirs:
        return Position.UNKNOWN
    for depth, (here, there) in enumerate(zip(mine, theirs, strict=False)):
        if (here.file, here.function) != (there.file, there.function):
            return _in_shared_loop(mine[:depth])
        if here.line != there.line:
            if _comes_there_sometimes(mine, depth, there):
                return Position.IN_LOOP
            return _apart(here, there, mine[:depth], theirs[depth + 1 :])
    if len(mine) == len(theirs):
        return Position.SAME
    return _in_shared_loop(mine[: min(len(mine), len(theirs))])


def _comes_there_sometimes(mine: tuple[Frame, ...], depth: int, there: Frame) -> bool:
    """Whether it is in a loop that both are in, and at a line of it that a condition guards.

    Then the other may be a round ahead, past this line, and nobody has left anything.
    """
    here = mine[depth]
    share = any(frame.loops for frame in mine[:depth]) or bool(set(here.loops) & set(there.loops))
    return share and any(frame.condition is not None for frame in (here, mine[-1]))


def _apart(
    here: Frame, there: Frame, shared: tuple[Frame, ...], deeper: tuple[Frame, ...]
) -> Position:
    """Both are in one function, on different lines."""
    left = [loop for loop in there.loops if here.line not in loop]
    if any(here.line > loop.end for loop in left):
        return Position.LEFT_LOOP
    if any(here.line in loop for loop in there.loops) or any(frame.loops for frame in shared):
        return Position.IN_LOOP
    if here.line < there.line:
        return Position.BEHIND
    returned = any(frame.loops for frame in deeper)
    return Position.LEFT_LOOP if returned else Position.AHEAD


def _in_shared_loop(shared: tuple[Frame, ...]) -> Position:
    return Position.IN_LOOP if any(frame.loops for frame in shared) else Position.UNKNOWN


def loop_of(rank: RankProcess) -> tuple[Frame, Loop] | None:
    """The innermost loop that a rank is in, with the call that stands in it."""
    for frame in reversed(script_path(rank)):
        if frame.loops:
            return frame, frame.loops[-1]
    return None
