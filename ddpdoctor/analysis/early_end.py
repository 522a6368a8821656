"""Which rank's end was the first, where the others' are its consequences."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ddpdoctor.analysis.model import Cause, EarlyEnd, WaitedInVain
from ddpdoctor.clocks import CommonClock
from ddpdoctor.events import End, EndKind, Flag, Kind, Op, Phase
from ddpdoctor.findings import Location
from ddpdoctor.tracefile import RankTrace, Run

# How torch words that another rank went, or was waited for in vain: gloo, NCCL and the store.
_LOST_A_PEER: Final = re.compile(
    r"(?i)connection (was likely )?closed|connection reset|broken pipe|got 0 bytes|"
    r"remote process exited|communicator was aborted|connection refused"
)
_GAVE_UP: Final = re.compile(r"(?i)timed ?out|timeout")
_TORCHS: Final = frozenset(
    {"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"}
)
_FROM_OUTSIDE: Final = frozenset({"KeyboardInterrupt", "SignalException"})


def early_end(run: Run, clock: CommonClock) -> EarlyEnd | None:
    """None where nobody failed, or where nothing tells who was first."""
    failed = sorted(
        (trace for trace in run.ranks if trace.end is not None and trace.end.failed),
        key=lambda trace: _at_ns(trace, clock),
    )
    by_itself = [trace for trace in failed if _is_own_fault(trace)]
    if by_itself:
        alike = [trace for trace in by_itself if _key(trace) == _key(by_itself[0])]
        return _early_end(Cause.ERROR, alike, run)
    hung_up = [trace for trace in run.ranks if _is_hung_up(trace)]
    if hung_up:
        return _early_end(Cause.HANGUP, hung_up, run)
    lost = [trace for trace in failed if trace.end and _is_torchs(trace.end, _LOST_A_PEER)]
    if not lost:
        return None
    silent = [trace for trace in run.ranks if _is_silent(trace)]
    if silent:
        return _early_end(Cause.SILENCE, silent, run)
    left = [
        trace
        for trace in run.ranks
        if trace.end is not None
        and not trace.end.failed
        and _at_ns(trace, clock) < _at_ns(lost[0], clock)
    ]
    return _early_end(Cause.LEFT, left, run) if left else None


def waited_in_vain(run: Run) -> WaitedInVain | None:
    """Ranks ended by the timeout of their group, and those that SIGTERM found in no collective."""
    waiting = [trace for trace in run.ranks if trace.end and _is_torchs(trace.end, _GAVE_UP)]
    missing = [
        trace
        for trace in run.ranks
        if trace.end is None and trace.last_stacks.at_sigterm and not _is_in_collective(trace)
    ]
    if not waiting or not missing:
        return None
    places = [(trace.info.rank, (trace.last_stacks.at_sigterm or ())[0]) for trace in missing]
    return WaitedInVain(
        tuple(trace.info.rank for trace in waiting),
        waiting[0].end.message if waiting[0].end else "",
        tuple(trace.info.rank for trace in missing),
        tuple(Location(rank, site.file, site.line, site.function) for rank, site in places),
    )


def _is_in_collective(trace: RankTrace) -> bool:
    """By its newest one; where completions are not measured, it may be in it."""
    calls = trace.detail[trace.detail["kind"] == Kind.COLLECTIVE]
    numbered = calls[(calls["flags"] & Flag.POINT_TO_POINT) == 0]
    return bool((numbered["end_ns"][-1:] == 0).any())


def _at_ns(trace: RankTrace, clock: CommonClock) -> int:
    at_ns = np.array([trace.end.at_ns if trace.end else 0], np.int64)
    return int(clock.ranks[trace.info.rank].to_common(at_ns)[0])


def _is_own_fault(trace: RankTrace) -> bool:
    end = trace.end
    if end is None or end.error in _FROM_OUTSIDE:
        return False
    if end.kind is EndKind.EXIT:
        return not trace.last_stacks.by_signal  # else the script's handler ended it
    return not _is_torchs(end, _LOST_A_PEER) and not _is_torchs(end, _GAVE_UP)


def _is_torchs(end: End, words: re.Pattern[str]) -> bool:
    return end.error in _TORCHS and words.search(end.message) is not None


def _is_silent(trace: RankTrace) -> bool:
    ended_otherwise = trace.closed or trace.end is not None or trace.stopped is not None
    return not ended_otherwise and not trace.last_stacks.by_signal


def _is_hung_up(trace: RankTrace) -> bool:
    """Whether SIGHUP ended it; a script may handle that signal, and go on or end in peace."""
    if trace.last_stacks.at_sighup is None or trace.stopped is not None:
        return False
    return trace.end.failed if trace.end is not None else not trace.closed


def _key(trace: RankTrace) -> object:
    end = trace.end
    return end and (end.kind, end.error, end.site, end.status)


def _early_end(cause: Cause, first: list[RankTrace], run: Run) -> EarlyEnd:
    culprits = tuple(trace.info.rank for trace in first)
    others = [trace for trace in run.ranks if trace.info.rank not in culprits]
    in_peace = [trace.info.rank for trace in others if trace.end and not trace.end.failed]
    victims = tuple(t.info.rank for t in others if t.info.rank not in in_peace)
    end, newest = first[0].end, first[0].detail[-1:]
    step = end.step if end else int(newest["step"][0]) if len(newest) else 0
    return EarlyEnd(cause, culprits, victims, step, _last_record(first[0]), end)


def _last_record(trace: RankTrace) -> str:
    """The newest span or collective, and whether it has ended."""
    detail = trace.detail[trace.detail["kind"] != Kind.STEP]
    if not len(detail):
        return "nothing"
    newest = detail[-1]
    code, is_call = int(newest["code"]), newest["kind"] == Kind.COLLECTIVE
    name = Op(code).label if is_call else Phase(code).label
    return f"{name} ({'ended' if newest['end_ns'] else 'begun'})"
