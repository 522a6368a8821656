"""Reads the lines that torchrun, torch, NCCL, gloo, Slurm and the kernel write when a job ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from ddpdoctor.credentials import masked_text
from ddpdoctor.events import MOST_RANKS
from ddpdoctor.hang.activity import WRAPPERS
from ddpdoctor.hang.calls import CallSite
from ddpdoctor.hang.joblog import NOT_TOLD, Enqueued, Failure, JobLog, Mismatched, TimedOut
from ddpdoctor.stackframes import Origin, origin_of

MAX_LINE: Final = 2_000  # characters of a line that are looked at
MAX_MESSAGE: Final = 300  # of a message that are kept
MAX_KEPT: Final = 16  # lines of the kernel's
_PREFIX: Final = re.compile(  # of a rank: torch's, torchrun --tee's, mpirun's, srun -l's
    r"\s*(?:\[(?:rank|default)(\d{1,6})\]:? ?|\[\d+,(\d{1,6})\]<std\w+>: ?|(\d{1,6}): )"
)
_STAMP: Final = re.compile(  # before all else: `kubectl logs --timestamps`, a logging handler
    r"\s*\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?:Z|[+-]\d\d:?\d\d)?\]?[ :]?"
)
_FRAME: Final = re.compile(r'\s*File "([^"]{1,1000})", line (\d{1,9}), in (.{1,200})')
_ERROR: Final = re.compile(
    r"(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Iteration))"
    r"(?:: (.*))?$"
)
_TRACEBACK: Final = "Traceback (most recent call last):"
_WATCHDOG: Final = re.compile(
    r"Rank (\d{1,6})\] Watchdog caught collective operation timeout: WorkNCCL\("
    r"(?:SeqNum=(\d+), )?OpType=(\w+)(?:, NumelIn=(\d+))?.*?Timeout\(ms\)=(\d+)\)"
)
_LAST_WORK: Final = re.compile(
    r"Rank (\d{1,6})\].*last enqueued (?:NCCL )?work: (-?\d+), "
    r"last completed (?:NCCL )?work: (-?\d+)"
)
_GROUP: Final = re.compile(r"\[PG (?:ID )?(\d+)")
_FINGERPRINTS: Final = re.compile(
    r"Detected mismatch between collectives on ranks\. Rank (\d{1,6}) is running collective: "
    r"(\w+\(.{0,400}?\))\)?, but Rank (\d{1,6}) is running collective: (\w+\(.{0,400}?\))"
)
_OP_TYPE: Final = re.compile(r"OpType=(\w+)(?:, TensorShape=(\[[\d, ]*\]))?")
_MONITORED: Final = re.compile(
    r"Ranks? ([\d, ]{1,400}?) (?:failed to pass|.{0,40}monitoredBarrier)"
)
_CLIENTS: Final = re.compile(r"(\d{1,7})/(\d{1,7}) clients joined")
_IN_USE: Final = re.compile(r"port: (\d{1,5}),.*EADDRINUSE|EADDRINUSE|[Aa]ddress already in use")
_HANGUP: Final = re.compile(r"got signal: 1\b|SignalException.*SIGHUP|Received 1 death signal")
_KERNEL: Final = re.compile(
    r"Killed process \d+ \(|oom-kill:constraint=|[Dd]etected \d+ oom[_-]kill event|"
    r"task \d+: Out Of Memory|Memory cgroup out of memory"
)
_EXITED: Final = re.compile(
    r"failed \(exitcode: (-?\d{1,4})\) local_rank: (\d{1,6}) \(pid: (\d{1,8})\)"
)
_TASK: Final = re.compile(
    r"srun: error: [\w.\-]+: tasks? (\d{1,6}): (?:Exited with exit code (\d{1,3})|(Killed))"
)
_WORLD: Final = re.compile(r"world_sizes?=\[?(\d{1,7})|[Ww]orld size (?:is |of )?(\d{1,7})\b")
_ROW: Final = re.compile(r"\s*(time|rank|exitcode|error_file|traceback)\s*: (.*)")
_ROW_RANK: Final = re.compile(r"(\d{1,6}) \(local_rank: (\d{1,6})\)")
_ROW_EXIT: Final = re.compile(r"(-?\d{1,4})\s*\(pid: (\d{1,8})\)")


@dataclass
class _Open:
    """A traceback under way: the innermost line of the script so far, and what that called."""

    site: CallSite | None = None
    call: str = ""
    when: float | None = None

    def enter(self, file: str, line: int, function: str) -> None:
        origin = origin_of(file)
        if origin is Origin.USER or self.site is None:
            self.site, self.call = CallSite(file, line, function), ""
        elif origin is Origin.TORCH and not self.call:
            bare = function.rsplit(".", 1)[-1]
            self.call = "" if bare in WRAPPERS else bare


@dataclass
class _Row:
    """One failure of torchrun's table, as it is read line by line."""

    root: bool
    at: str = ""
    rank: int | None = None
    status: int | None = None
    pid: int | None = None


class LogReader:
    """Takes the lines of one log after another, and then tells what they said."""

    def __init__(self) -> None:
        self._order = 0
        self._failures: dict[int, Failure] = {}
        self._timed_out: dict[tuple[int, str], TimedOut] = {}
        self._enqueued: dict[tuple[int, str], Enqueued] = {}
        self._kernel: dict[str, None] = {}
        self._port: int | None = None
        self._joined: tuple[int, int] | None = None
        self._hung_up = False
        self._world: int | None = None
        self._local: dict[int, Failure] = {}  # by local rank, where no table follows
        self._has_table = False
        self._mismatched: list[Mismatched] = []
        self._absent: set[int] = set()
        self._open: dict[int | None, _Open] = {}  # tracebacks under way, by rank
        self._log = 0
        self._last: dict[int, int] = {}  # of each log the order of its last line
        self._when: float | None = None  # of this line, or of the one before
        self._row: _Row | None = None
        self._in_root = False
        self._unnamed: list[Failure] = []

    def read(self, lines: Iterable[str], rank: int | None = None) -> None:
        """One log, of all ranks or of one."""
        self._open, self._row, self._in_root, self._when = {}, None, False, None
        self._log += 1
        for line in lines:
            self._order += 1
            if line.strip():
                self._last[self._log] = self._order
            self._line(line[:MAX_LINE], rank)
        self._end_row()

    def failed(self, failure: Failure) -> None:
        """What an error file says."""
        self._order += 1
        self._log += 1
        self._note(replace(failure, order=self._order, log=self._log))

    def result(self, sources: Iterable[str], problems: Iterable[str] = ()) -> JobLog:
        failures = sorted(self._named_failures(), key=lambda each: each.rank)
        return JobLog(
            tuple(sources),
            tuple(failures),
            tuple(self._unnamed[:MAX_KEPT]),
            tuple(sorted(self._timed_out.values(), key=lambda each: each.rank)),
            tuple(sorted(self._enqueued.values(), key=lambda each: each.rank)),
            tuple(self._mismatched[:MAX_KEPT]),
            tuple(sorted(self._absent)),
            tuple(list(self._kernel)[:MAX_KEPT]),
            self._port,
            self._joined,
            self._hung_up,
            self._world,
            tuple(problems),
        )

    def _named_failures(self) -> Iterable[Failure]:
        """An error whose rank is not told is that of the only rank that ended without a word."""
        if not self._has_table:  # local ranks are ranks on a single host
            for each in self._local.values():
                self._note(each)
        silent = [
            each
            for each in self._failures.values()
            if not each.error and each.status and each.status > 0
        ]
        texts = {(e.error, e.message, e.site): e for e in reversed(self._unnamed)}
        texts = dict(reversed(texts.items()))  # of equal ones the first, in their order
        if len(silent) == 1 and len(texts) == 1:
            (said,) = texts.values()
            self._note(replace(said, rank=silent[0].rank))
            texts = {}
        self._unnamed = list(texts.values())
        if not self._failures and not any(each.is_consequence for each in self._unnamed):
            # the script may have logged it and gone on
            self._unnamed = [e for e in self._unnamed if e.order == self._last[e.log]]
        return self._failures.values()

    def _line(self, line: str, rank: int | None) -> None:
        line, when = _without_stamp(line)
        found = _PREFIX.match(line)
        if found:
            told = int(next(group for group in found.groups() if group is not None))
            rank = told if told < MOST_RANKS else rank
            line = line[found.end() :]
            line, when = (line, when) if when is not None else _without_stamp(line)
        before, self._when = self._when, when
        if self._traceback(line, rank, before if when is None else when):
            return
        for sign, pattern, act in _LINES:
            if sign in line:
                match = pattern.search(line)
                if match:
                    act(self, match, line)
        self._table(line)

    def _traceback(self, line: str, rank: int | None, when: float | None) -> bool:
        if line.startswith(_TRACEBACK):
            self._open[rank] = _Open(when=when)
            return True
        if rank not in self._open:
            return False
        frame = _FRAME.match(line)
        if frame:
            self._open[rank].enter(frame[1], int(frame[2]), frame[3].strip())
            return True
        if line[:1] in (" ", "\t", ""):
            return True
        error = _ERROR.match(line)
        told = self._open.pop(rank)
        if error is not None:
            self._raised(NOT_TOLD if rank is None else rank, error, told)
        return False

    def _raised(self, rank: int, error: re.Match[str], told: _Open) -> None:
        message = masked_text(error[2] or "")[:MAX_MESSAGE]
        failure = Failure(
            rank, self._order, None, error[1], message, told.site,
            call=told.call, log=self._log, when=told.when, clock="log",
        )  # fmt: skip
        if rank == NOT_TOLD:
            self._unnamed.append(failure)
        else:
            self._note(failure)

    def _note(self, new: Failure) -> None:
        """Of a rank, the last error counts, and the status that belongs to it."""
        old = self._failures.get(new.rank)
        if old is not None:
            said = new if new.error else old  # where, in which log, and when
            new = replace(
                said,
                order=new.order if new.error else min(old.order, new.order),
                status=new.status if new.status is not None else old.status,
                site=new.site or old.site,
                pid=new.pid or old.pid,
                at=new.at or old.at,
                is_root=new.is_root or old.is_root,
            )
        self._failures[new.rank] = new

    def _table(self, line: str) -> None:
        """torchrun's table of failures: the first one that it saw stands apart."""
        if line.startswith("Root Cause (first observed failure)"):
            self._end_row()
            self._in_root = True
        elif line.startswith("Failures:"):
            self._end_row()
            self._in_root = False
        elif line.startswith("[") and re.match(r"\[\d+\]:$", line.strip()):
            self._end_row()
            self._row = _Row(self._in_root)
        elif self._row is not None and (found := _ROW.match(line)):
            self._cell(self._row, found[1], found[2])

    def _cell(self, row: _Row, name: str, value: str) -> None:
        if name == "time":
            row.at = value.strip()[:40]
        elif name == "rank" and (found := _ROW_RANK.match(value)):
            row.rank = int(found[1])
        elif name == "exitcode" and (found := _ROW_EXIT.match(value)):
            row.status, row.pid = int(found[1]), int(found[2])
        elif name == "traceback":
            self._end_row()

    def _end_row(self) -> None:
        row, self._row = self._row, None
        if row is not None and row.rank is not None and row.rank < MOST_RANKS:
            self._has_table = True
            self._note(
                Failure(
                    row.rank, self._order, row.status, pid=row.pid, at=row.at, is_root=row.root,
                    log=self._log,
                )
            )  # fmt: skip

    def watchdog(self, found: re.Match[str], line: str) -> None:
        rank, group = int(found[1]), _group_in(line)
        seq = int(found[2]) if found[2] else None
        size = int(found[4]) if found[4] else None
        told = TimedOut(rank, seq, found[3].lower(), size, int(found[5]), group)
        self._timed_out.setdefault((rank, group), told)

    def last_work(self, found: re.Match[str], line: str) -> None:
        rank, group = int(found[1]), _group_in(line)
        told = Enqueued(rank, int(found[2]), int(found[3]), group)
        self._enqueued.setdefault((rank, group), told)

    def fingerprints(self, found: re.Match[str], _line: str) -> None:
        calls = [_called(found[2]), _called(found[4])]
        self._mismatched.append(Mismatched(int(found[1]), calls[0], int(found[3]), calls[1]))

    def monitored(self, found: re.Match[str], _line: str) -> None:
        ranks = [int(each) for each in re.findall(r"\d{1,6}", found[1])]
        self._absent.update(rank for rank in ranks if rank < MOST_RANKS)

    def clients(self, found: re.Match[str], _line: str) -> None:
        self._joined = (int(found[1]), int(found[2]))

    def in_use(self, found: re.Match[str], _line: str) -> None:
        self._port = self._port or int(found[1] or 0)

    def hangup(self, _found: re.Match[str], _line: str) -> None:
        self._hung_up = True

    def of_kernel(self, _found: re.Match[str], line: str) -> None:
        self._kernel.setdefault(masked_text(line.strip())[:MAX_MESSAGE])

    def exited(self, found: re.Match[str], _line: str) -> None:
        local = int(found[2])
        self._local.setdefault(
            local,
            Failure(
                local, self._order, int(found[1]), pid=int(found[3]), is_root=True, log=self._log
            ),
        )

    def of_task(self, found: re.Match[str], _line: str) -> None:
        status = -9 if found[3] else int(found[2])
        self._note(Failure(int(found[1]), self._order, status, log=self._log))

    def of_world(self, found: re.Match[str], _line: str) -> None:
        self._world = min(int(found[1] or found[2]), MOST_RANKS)


_EADDRINUSE: Final = "EADDRINUSE"
_Act = Callable[[LogReader, re.Match[str], str], None]
_LINES: Final[tuple[tuple[str, re.Pattern[str], _Act], ...]] = (  # a cheap word first
    ("Watchdog caught", _WATCHDOG, LogReader.watchdog),
    ("last enqueued", _LAST_WORK, LogReader.last_work),
    ("Detected mismatch", _FINGERPRINTS, LogReader.fingerprints),
    ("monitoredBarrier", _MONITORED, LogReader.monitored),
    ("clients joined", _CLIENTS, LogReader.clients),
    (_EADDRINUSE, _IN_USE, LogReader.in_use),
    ("ddress already in use", _IN_USE, LogReader.in_use),
    ("exitcode: ", _EXITED, LogReader.exited),
    ("ignal", _HANGUP, LogReader.hangup),
    ("illed process", _KERNEL, LogReader.of_kernel),
    ("oom", _KERNEL, LogReader.of_kernel),
    ("ut of memory", _KERNEL, LogReader.of_kernel),
    ("Out Of Memory", _KERNEL, LogReader.of_kernel),
    ("srun: error", _TASK, LogReader.of_task),
    ("orld", _WORLD, LogReader.of_world),
)


def _group_in(line: str) -> str:
    found = _GROUP.search(line)
    return found[1] if found else ""


def _called(fingerprint: str) -> str:
    found = _OP_TYPE.search(fingerprint)
    if found is None:
        return fingerprint[:80]
    return found[1].lower() + (f" of {found[2]}" if found[2] else "")


def _without_stamp(line: str) -> tuple[str, float | None]:
    """The line behind a time at its beginning, and that time in seconds."""
    found = _STAMP.match(line)
    if found is None:
        return line, None
    whole, _, part = found[1].replace("T", " ").replace(",", ".").partition(".")
    try:
        at = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return line, None
    return line[found.end() :], at.timestamp() + float(f"0.{part or 0}")
