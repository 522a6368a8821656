"""Whether this rank stands still, and then once where: its threads, step and collectives.

No record was committed, and a collective is pending or the training thread neither moves nor
computes, and nothing is read or written. That alone is no hang: whether the others go on is for the
readers to see. It is told again, ever more seldom, since ranks may end meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

from ddpdoctor.events import Kind, Op, PendingCall, Phase, Site, Stall, ThreadSites
from ddpdoctor.hang.processes import Processes
from ddpdoctor.hang.snapshot import IO_BYTES, IO_RATE
from ddpdoctor.recorder.backup import Backup
from ddpdoctor.recorder.callsite import CallSites, site_of
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.lastlook import (
    frames_of,
    gone_ranks,
    kills_beside,
    wchan_of,
    with_source,
)
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.writer import RankFile

STALL_S: Final = 5.0  # far above a pause of the machine, far below any timeout of a group
AGAIN_TIMES: Final = 4  # as long as it had stood when it was told last
LOOK_CLOSER: Final = 0.2  # of that time, in which an ordinary step records something
BUSY_SHARE: Final = 0.1  # of a CPU that the training thread uses: more, and it computes
MAX_THREADS: Final = 32
MAX_SITES: Final = 20  # of one thread
MAX_PENDING: Final = 64
MAX_STALLS: Final = 1000  # that are written: a rank that stalls each minute for a day


@dataclass(frozen=True)
class _Still:
    """The training thread when nothing had been recorded for a while."""

    at_s: float
    place: tuple[str, int] | None  # the user's line
    cpu_s: float  # of the training thread
    helped_s: float  # CPU time of the processes that make its batches
    io_bytes: int  # that it and these have read and written


class StallWatch:
    """Looked at by the sentinel, some fifty times a second."""

    def __init__(
        self, phases: Phases, sites: CallSites, facts: FactsFile, file: RankFile, backup: Backup
    ) -> None:
        self._phases = phases
        self._sites = sites
        self._facts = facts
        self._file = file
        self._backup = backup
        self._moved_at_s = time.monotonic()
        self._records = 0
        self._still: _Still | None = None
        self._tell_after_s = STALL_S
        self._told = False
        self._left = MAX_STALLS

    def look(self, phase: Phase, user: FrameType | None) -> None:
        """`user` is the innermost of the user's frames on the training thread."""
        self._backup.put_off()
        now, records = time.monotonic(), self._file.records
        if records != self._records:
            self._moved(now, records)
        elif self._still is None:
            if now - self._moved_at_s > LOOK_CLOSER * STALL_S:
                self._still = self._as_it_is(user)
        elif now - self._moved_at_s > self._tell_after_s:
            pending = self._pending()
            if pending or self._stands_still(self._still, now, user):
                self._tell(now, phase, user, pending)
                self._still = self._as_it_is(user)  # to tell it has read files
            else:
                self._moved(now, records)

    def look_away(self) -> None:
        """Nothing is to be recorded: that nothing is added is no stall."""
        self._backup.put_off()
        self._moved(time.monotonic(), self._file.records)

    @property
    def stands(self) -> bool:
        """Whether nothing has been recorded for a while: then there is no need to look often."""
        return self._still is not None

    def rest(self) -> None:
        """The sentinel's thread ends here."""
        self._backup.rest()

    def _moved(self, now: float, records: int) -> None:
        self._moved_at_s, self._records, self._still = now, records, None
        if self._told:
            self._facts.stall(None)
        self._tell_after_s, self._told = STALL_S, False

    def _as_it_is(self, user: FrameType | None) -> _Still:
        return _Still(time.monotonic(), _place(user), self._cpu_s(), *_helped())

    def _stands_still(self, before: _Still, now: float, user: FrameType | None) -> bool:
        after, watched_s = self._as_it_is(user), now - before.at_s
        busy_s = max(after.cpu_s - before.cpu_s, after.helped_s - before.helped_s)
        moved = after.io_bytes - before.io_bytes
        much = max(IO_BYTES, IO_RATE * watched_s)
        at_work = busy_s >= BUSY_SHARE * watched_s or moved >= much
        return after.place == before.place and not at_work

    def _cpu_s(self) -> float:
        """CPU time of the training thread; 0 where the kernel does not tell."""
        threads = {thread.ident: thread.native_id for thread in threading.enumerate()}
        path = Path(f"/proc/self/task/{threads.get(self._phases.thread)}/schedstat")
        try:
            return int(path.read_text(encoding="ascii").split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def _tell(
        self, now: float, phase: Phase, user: FrameType | None, pending: tuple[PendingCall, ...]
    ) -> None:
        self._tell_after_s = AGAIN_TIMES * (now - self._moved_at_s)
        if not self._left:
            return
        self._left -= 1
        self._told = True
        site = site_of(user) if user is not None else None
        seconds, step = now - self._moved_at_s, max(0, self._phases.step_of_record)
        thread, processes = self._phases.thread, Processes()
        frames, gone = frames_of(sys._current_frames().get(thread)), gone_ranks(processes)
        stall = Stall(
            phase, site, seconds, step, self._threads(), pending,
            frames, wchan_of(thread), gone, kills_beside(gone, processes),
        )  # fmt: skip
        self._facts.stall(stall)
        # only then: the sources may lie on the very disk that it waits for
        self._facts.stall(replace(stall, stack=with_source(frames)))

    def _threads(self) -> tuple[ThreadSites, ...]:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        found = []
        for ident, frame in list(sys._current_frames().items())[:MAX_THREADS]:
            sites: list[Site] = []
            user = self._sites.user_frame(frame)
            while user is not None and len(sites) < MAX_SITES:
                sites.append(site_of(user))
                user = self._sites.user_frame(user.f_back)
            if sites:
                found.append(ThreadSites(names.get(ident, "?"), tuple(sites)))
        return tuple(found)

    def _pending(self) -> tuple[PendingCall, ...]:
        now = time.monotonic_ns()
        return tuple(
            PendingCall(group, seq, Op(op), nbytes, max(0, now - begin) / 1e9)
            for (
                _, _, op, _, _, _, _, seq, group, _, _, _, begin, _, _, nbytes,
            ) in self._file.unfinished(Kind.COLLECTIVE)[:MAX_PENDING]
        )  # fmt: skip


def _place(user: FrameType | None) -> tuple[str, int] | None:
    return None if user is None else (user.f_code.co_filename, user.f_lineno)


def _helped() -> tuple[float, int]:
    """CPU time of the child processes, and bytes that they and this one have read and written."""
    processes, own = Processes(), os.getpid()
    counted = {pid: processes.counters(pid) for pid in (own, *_children())}
    cpu_s = sum(each.cpu_s for pid, each in counted.items() if each and pid != own)
    return cpu_s, sum(each.io_bytes or 0 for each in counted.values() if each)


def _children() -> list[int]:
    """Told by few bytes: what is read here counts as read by this process."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            text = Path(f"/proc/self/task/{thread}/children").read_text(encoding="ascii")
        except OSError:  # the thread has ended, or the kernel does not tell
            continue
        found += map(int, text.split())
    return found
