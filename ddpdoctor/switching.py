"""`ddpdoctor record`: tells the ranks of a running job from which step on to record.

The step lies as far ahead of the newest rank as the ranks need to hear of it, each by looking at
the control file once a second. Nothing but files is used, so no rank waits for another.
"""

from __future__ import annotations

import math
import os
import secrets
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddpdoctor.errors import BadTraceFile, CannotSwitch
from ddpdoctor.events import PROGRESS, PROGRESS_OFFSET
from ddpdoctor.factsfile import UNREADABLE
from ddpdoctor.regular import opened, read_up_to
from ddpdoctor.runfolders import attempt_folder, newest_run, rank_files
from ddpdoctor.schedule import (
    CONTROL_BYTES,
    CONTROL_FILE,
    Schedule,
    Switch,
    control_bytes,
    read_control,
)
from ddpdoctor.tracefile import read_header
from ddpdoctor.wording import rank_list

LEAD_S: Final = 4.0  # a rank's second to look, one more to say where it is, and as much again
LEAD_STEPS: Final = 2  # a step that is under way, and the next, whose input may be begun
PACE_PATIENCE_S: Final = 30.0  # after it, steps are taken to be longer than that
HEARD_PATIENCE_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.1
_MOST_STEP: Final = 2**52


@dataclass(frozen=True)
class Progress:
    """What a rank says of itself in its open file."""

    rank: int
    step: int  # under way; 0 before the rank has said anything
    pace_us: int  # a step; 0 is not known
    heard: int  # checksum of the control file that it took in


@dataclass(frozen=True)
class Told:
    """What was told, and which ranks have not taken it in within some seconds."""

    state: str
    first: int
    steps: int | None
    ranks: tuple[int, ...]
    silent: tuple[int, ...]

    @property
    def sentence(self) -> str:
        span = f"with step {self.first}"
        if self.steps is not None:
            span = f"for steps {self.first} to {self.first + self.steps - 1}"
        heard = [rank for rank in self.ranks if rank not in self.silent]
        return (
            f"Recording goes {self.state} {span}; heard by {len(heard)} of {len(self.ranks)} ranks."
        )

    @property
    def complaint(self) -> str:
        return (
            f"{rank_list(self.silent)} did not answer within {HEARD_PATIENCE_S:.0f} s: the process "
            "has ended, holds Python's lock, or sees the folder later than we do"
        )


def switch_recording(
    run: Path | None, *, on: bool, steps: int | None = None, detail_every: int | None = None
) -> Told:
    """Have all ranks record, or not, from one step on. Raises CannotSwitch, NotARun."""
    folder = attempt_folder(run if run is not None else newest_run())
    first = _first_step(_settled_progress(folder))
    switches = [Switch(first, on, detail_every)]
    if steps is not None:
        switches.append(Switch(first + steps, not on))
    schedule = Schedule(_told_before(folder)).amended(tuple(switches))
    raw = control_bytes(schedule.switches)
    _replace(folder / CONTROL_FILE, raw)
    ranks, silent = _wait_until_heard(folder, zlib.crc32(raw))
    return Told("on" if on else "off", first, steps, ranks, silent)


def _settled_progress(folder: Path) -> list[Progress]:
    """Of the ranks that still run; waits a little where they have not told their pace yet."""
    deadline = time.monotonic() + PACE_PATIENCE_S
    while True:
        running = list(_running(folder))
        if not running:
            raise CannotSwitch(f"{folder}: this run has ended")
        if all(each.pace_us for each in running) or time.monotonic() > deadline:
            return running
        time.sleep(_LOOK_EVERY_S)


def _running(folder: Path) -> Iterator[Progress]:
    for path in rank_files(folder):
        with suppress(OSError, BadTraceFile):
            header = read_header(path)
            if not header.closed and header.stopped is None:
                with opened(path) as fd:
                    raw = os.pread(fd, PROGRESS.size, PROGRESS_OFFSET)
                yield Progress(header.rank.rank, *PROGRESS.unpack(raw.ljust(PROGRESS.size, b"\0")))


def _first_step(running: list[Progress]) -> int:
    newest = max(each.step for each in running)
    known = [each.pace_us for each in running if each.pace_us]
    ahead = math.ceil(LEAD_S * 1e6 / min(known)) if known else 0
    if newest > _MOST_STEP:
        raise CannotSwitch("a rank claims an impossible step, so its file is damaged")
    return newest + LEAD_STEPS + ahead


def _told_before(folder: Path) -> tuple[Switch, ...]:
    try:
        return read_control(read_up_to(folder / CONTROL_FILE, CONTROL_BYTES + 1))
    except (OSError, *UNREADABLE):  # none, or one that the ranks ignore, too
        return ()


def _replace(path: Path, raw: bytes) -> None:
    """All at once, so that no rank reads a part of it. Raises CannotSwitch."""
    unfinished = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        try:
            with unfinished.open("xb") as file:
                file.write(raw)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise CannotSwitch(f"{path}: cannot be written ({error.strerror})") from error


def _wait_until_heard(folder: Path, checksum: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks that run, and those of them that did not hear in time."""
    deadline = time.monotonic() + HEARD_PATIENCE_S
    while True:
        running = list(_running(folder))
        silent = tuple(each.rank for each in running if each.heard != checksum)
        if not silent or time.monotonic() > deadline:
            return tuple(each.rank for each in running), silent
        time.sleep(_LOOK_EVERY_S)
