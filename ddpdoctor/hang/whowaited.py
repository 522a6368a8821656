"""Of the watchdogs' last words in a log: who waited for whom."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ddpdoctor.hang.joblog import Enqueued, JobLog, TimedOut


@dataclass(frozen=True)
class Waited:
    """One group of calls that were given up. At most one of the last three is not empty."""

    calls: tuple[TimedOut, ...]
    behind: tuple[int, ...] = ()  # ranks that never made the call, or are at an earlier one
    different: tuple[TimedOut, ...] = ()  # made another call with that number: one a kind
    together: bool = False  # all ranks of the job gave up the same call


def who_waited(log: JobLog) -> Waited | None:
    """None where nobody gave up a collective, or where others' logs would have to tell."""
    by_group: dict[str, list[TimedOut]] = defaultdict(list)
    for call in log.timed_out:
        by_group[call.group].append(call)
    if not by_group:
        return None
    # groups that hold fewer ranks may wait for the largest one; never the other way round
    _, calls = max(by_group.items(), key=lambda pair: (len(pair[1]), pair[0]))
    kinds: dict[tuple[object, ...], list[TimedOut]] = defaultdict(list)
    for call in calls:
        kinds[call.seq, call.op].append(call)
    newest = max((call.seq for call in calls if call.seq is not None), default=None)
    earlier = tuple(sorted(c.rank for c in calls if c.seq is not None and c.seq != newest))
    if earlier and len(earlier) < len(calls):
        return Waited(tuple(calls), behind=earlier)
    if len(kinds) > 1:
        return Waited(tuple(calls), different=tuple(each[0] for each in kinds.values()))
    silent = _silent(log, calls, newest)
    if silent:
        return Waited(tuple(calls), behind=silent)
    return Waited(tuple(calls), together=len(calls) == len(log.ranks) and len(calls) > 1)


def _silent(log: JobLog, calls: list[TimedOut], newest: int | None) -> tuple[int, ...]:
    """Ranks that did not give up, of which the log tells that they were no further."""
    waiting = {call.rank for call in calls}
    group = calls[0].group  # older versions do not tell it
    last: dict[int, Enqueued] = {
        each.rank: each for each in log.enqueued if group in ("", each.group) or not each.group
    }
    others = [rank for rank in log.ranks if rank not in waiting]
    told = [r for r in others if r in last and newest is not None and last[r].enqueued < newest]
    if told:
        return tuple(told)
    return tuple(others) if log.world_size and 2 * len(others) <= log.world_size else ()
