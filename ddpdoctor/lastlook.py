"""What the ranks of a recorded job noted when they stood still, as a snapshot that is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.checks import NotEnoughData
from ddpdoctor.events import GoneRank, Stall
from ddpdoctor.findings import Confidence, Finding
from ddpdoctor.hang.alike import started_as
from ddpdoctor.hang.records import collectives_of, settings_of
from ddpdoctor.hang.situation import Kind, situation
from ddpdoctor.hang.snapshot import (
    DeadRank,
    HangSnapshot,
    Job,
    Movement,
    RankProcess,
    ThreadStack,
)

if TYPE_CHECKING:  # a hang check loads no numpy
    from ddpdoctor.analysis.model import Analysis
    from ddpdoctor.tracefile import RankTrace, Run

_NOT_UNDERSTOOD = (Kind.NOBODY_WAITS, Kind.UNREADABLE, Kind.MOVES)


def last_look(run: Run) -> HangSnapshot | None:
    """None unless each rank stood still when the record ends, or was seen to be gone."""
    noted = {t.info.rank: t for t in run.ranks if not t.closed and t.stall and t.stall.stack}
    gone = _gone(run, noted)
    if not noted or len(noted) + len(gone) < run.info.world_size:
        return None
    stalls = [trace.stall for trace in noted.values() if trace.stall]
    kills = dict.fromkeys(kill for stall in stalls for kill in stall.memory_kills)
    return HangSnapshot(
        Job("", run.info.run_id, 0, run.info.world_size),
        ", ".join(sorted({trace.info.host for trace in noted.values()})),
        tuple(_process(trace, trace.stall) for trace in noted.values() if trace.stall),
        tuple(gone.values()),
        min(stall.seconds for stall in stalls),
        memory_kills=tuple(kills),
    )


def _gone(run: Run, noted: dict[int, RankTrace]) -> dict[int, DeadRank]:
    """Ranks that left no word of their end, and that another one of their host saw to be gone."""
    traces = {trace.info.rank: trace for trace in run.ranks}
    seen: dict[int, GoneRank] = {}
    for trace in noted.values():
        for each in trace.stall.gone if trace.stall else ():
            other = traces.get(each.rank)
            beside = other is None or other.info.host == trace.info.host
            if beside and each.rank not in noted and each.rank < run.info.world_size:
                known = seen.get(each.rank)
                seen[each.rank] = known if known and known.signal else each
    return {
        rank: DeadRank(rank, each.pid, each.signal or None, each.exit_status or None)
        for rank, each in sorted(seen.items())
        if (trace_of := traces.get(rank)) is None or not (trace_of.closed or trace_of.end)
    }


def _process(trace: RankTrace, stall: Stall) -> RankProcess:
    return RankProcess(
        trace.info.rank,
        trace.info.pid,
        state="",
        wchan=stall.wchan,
        threads=(ThreadStack(trace.info.pid, "MainThread", stall.stack),),
        movement=Movement(watched_s=stall.seconds),
        on_gpu=trace.info.device.startswith("cuda"),
        collectives=collectives_of(trace),
        started=started_as(trace.process.command if trace.process else (), trace.info.environment),
        settings=settings_of(trace),
    )


def is_understood(snapshot: HangSnapshot | None) -> bool:
    """Whether a check of hangs that is asked of a record, too, names what is the matter."""
    return snapshot is not None and situation(snapshot).kind not in _NOT_UNDERSTOOD


def judged_by(
    run: Analysis, check: Callable[[HangSnapshot], Iterator[Finding]]
) -> Iterator[Finding]:
    """What a check of hangs says of a record's last look: less surely, nobody looked twice."""
    if all(trace.closed for trace in run.run.ranks):
        return
    snapshot = last_look(run.run)
    if snapshot is None:
        raise NotEnoughData("not every rank noted where it stood still")
    if run.early_end is not None:
        return  # DD901 names the cause
    for finding in check(snapshot):
        sure = finding.confidence is Confidence.CERTAIN
        yield replace(finding, confidence=Confidence.LIKELY) if sure else finding
