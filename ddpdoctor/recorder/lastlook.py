"""What a rank that stands still sees of itself and of the ranks beside it.

The same functions look as in `ddpdoctor diagnose`, so that a record of a job that was killed can be
judged as one that still hangs.
"""

from __future__ import annotations

import os
import threading
from types import FrameType
from typing import Final

from ddpdoctor.cgroups import MemoryKills
from ddpdoctor.credentials import masked_text
from ddpdoctor.events import GoneRank
from ddpdoctor.hang.aftermath import memory_kills
from ddpdoctor.hang.processes import Processes, Stat
from ddpdoctor.hang.registrations import Registration, read_registrations
from ddpdoctor.hang.source import SourceReader
from ddpdoctor.recorder.callsite import site_of
from ddpdoctor.recorder.registration import registration_folder
from ddpdoctor.stackframes import Frame, origin_of

MAX_FRAMES: Final = 100  # of a stack that are kept at each end
_MAX_WALKED: Final = 10_000
_MAX_SOURCE: Final = 512 * 1024  # bytes of a file: to parse it keeps Python's lock for 0.2 s


def frames_of(frame: FrameType | None) -> tuple[Frame, ...]:
    """All calls of a stack, innermost first; of a recursion without end both ends."""
    found: list[FrameType] = []
    while isinstance(frame, FrameType) and len(found) < _MAX_WALKED:
        found.append(frame)
        frame = frame.f_back
    if len(found) > 2 * MAX_FRAMES:
        found = found[:MAX_FRAMES] + found[-MAX_FRAMES:]
    return tuple(map(_frame, found))


def _frame(frame: FrameType) -> Frame:
    site = site_of(frame)
    return Frame(site.file, site.line or 0, site.function, origin_of(site.file))


def with_source(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """With the lines of the script, and the loops and conditions around them."""
    reader = SourceReader(_MAX_SOURCE, masked_text)
    return tuple(reader.annotated(frame) for frame in frames)


def wchan_of(thread: int) -> str:
    """In what of the kernel a Python thread of this process sleeps; "" where it is not told."""
    native = {each.ident: each.native_id for each in threading.enumerate()}.get(thread)
    if native is None:
        return ""
    try:
        with open(f"/proc/self/task/{native}/wchan", encoding="ascii", errors="replace") as file:
            return file.read(100)
    except OSError:
        return ""


def gone_ranks(processes: Processes) -> tuple[GoneRank, ...]:
    """Ranks of this job that registered on this host, and that no longer run.

    One that ended well took its registration away.
    """
    try:
        registered = list(read_registrations(registration_folder()))
    except OSError:
        return ()
    own = next((each for each in registered if each.pid == os.getpid()), None)
    if own is None:
        return ()
    job = [each for each in registered if each.run_folder == own.run_folder and each != own]
    return tuple(
        _gone(each, stat)
        for each in sorted(job, key=lambda each: each.rank)
        if not _lives(each, stat := processes.stat(each.pid))
    )


def _lives(known: Registration, stat: Stat | None) -> bool:
    if stat is None or stat.start_ticks != known.start_ticks:
        return False
    return stat.state not in ("Z", "X")


def _gone(known: Registration, stat: Stat | None) -> GoneRank:
    is_it = stat is not None and stat.start_ticks == known.start_ticks
    code = stat.exit_code if stat is not None and is_it else 0
    return GoneRank(known.rank, known.pid, code & 0x7F, code >> 8)


def kills_beside(gone: tuple[GoneRank, ...], processes: Processes) -> tuple[MemoryKills, ...]:
    """Kills for memory in the control groups of this process."""
    return memory_kills([os.getpid()], processes) if gone else ()
