"""The collectives that the ranks recorded, on the common clock: one rank after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ddpdoctor.clocks import CommonClock, RankClock
from ddpdoctor.columns import Columns
from ddpdoctor.events import Flag, GroupInfo, Kind, Phase
from ddpdoctor.tracefile import RankTrace

Ints = npt.NDArray[np.int64]

UNKNOWN: Final = -1
# Small numbers take less room, since there may be tens of millions.
_NARROW: Final[dict[str, type[np.generic]]] = {
    "rank": np.int32, "group": np.int32, "seq": np.uint32, "op": np.int16, "flags": np.int16,
    "bucket": np.int16, "sync": np.uint32, "site": np.uint32,
}  # fmt: skip
# Sends pair up on their own, and a call that raised reduced nothing: neither is put together
# with the other ranks' calls.
UNMATCHED: Final = Flag.POINT_TO_POINT | Flag.FAILED


def is_matched(flags: npt.ArrayLike, group: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether a collective is put together with those of the other ranks."""
    apart = np.asarray(flags) & int(UNMATCHED)
    return np.asarray((apart == 0) & (np.asarray(group) != UNKNOWN))


@dataclass(frozen=True)
class Recorded:
    """Columns of calls. Times are on the common clock; UNKNOWN where not known."""

    rank: Ints
    group: Ints
    seq: Ints
    op: Ints
    flags: Ints
    bucket: Ints
    sync: Ints
    site: Ints
    nbytes: Ints
    arrival_ns: Ints
    completion_ns: Ints

    def part(self, place: slice) -> Recorded:
        """Views of some."""
        return Recorded(**{name: column[place] for name, column in vars(self).items()})

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        return dict(vars(self))

    @property
    def latest_ns(self) -> int:
        return int(max(self.arrival_ns.max(initial=0), self.completion_ns.max(initial=0)))


@dataclass(frozen=True)
class RecordedCalls:
    """Of all ranks; `groups` has the sizes of the groups, by their numbers."""

    columns: Recorded
    places: dict[int, slice]  # of each rank
    groups: Ints


def recorded_calls(ranks: Sequence[RankTrace], clock: CommonClock) -> RecordedCalls:
    ordered = sorted(ranks, key=lambda trace: trace.info.rank)
    counts = [int(np.count_nonzero(trace.kind == int(Kind.COLLECTIVE))) for trace in ordered]
    columns = Recorded(
        **{
            field.name: np.empty(sum(counts), _NARROW.get(field.name, np.int64))
            for field in fields(Recorded)
        }
    )
    ends = np.cumsum(counts).tolist()
    places = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    groups: dict[GroupInfo, int] = {}
    for trace in ordered:
        for group in trace.groups:
            groups.setdefault(group, len(groups))
    for trace, place in zip(ordered, places, strict=True):
        _fill(columns.part(place), trace, clock.ranks[trace.info.rank], groups)
    return RecordedCalls(
        columns,
        {trace.info.rank: place for trace, place in zip(ordered, places, strict=True)},
        np.array([len(group.ranks) for group in groups], np.int64),
    )


def _fill(
    columns: Recorded, trace: RankTrace, clock: RankClock, numbering: dict[GroupInfo, int]
) -> None:
    """What the records of one rank tell."""
    records = Columns(trace.detail, np.flatnonzero(trace.kind == int(Kind.COLLECTIVE)))
    # UNKNOWN where the fact was lost
    number = np.array([*(numbering[group] for group in trace.groups), UNKNOWN], np.int64)
    for name in ("seq", "flags", "bucket", "sync", "site", "nbytes"):
        getattr(columns, name)[:] = records[name]
    columns.rank[:] = trace.info.rank
    columns.op[:] = records["code"]
    columns.group[:] = number[np.minimum(records["group"], len(number) - 1)]
    columns.arrival_ns[:] = clock.to_common(records["begin_ns"])
    ends = records["end_ns"]
    columns.completion_ns[:] = np.where(ends > 0, clock.to_common(ends), UNKNOWN)
    sync_ends = clock.to_common(_sync_ends(trace))
    columns.completion_ns[:] = _within_backward(columns, sync_ends)


def _sync_ends(trace: RankTrace) -> Ints:
    """When each backward had waited for its reductions."""
    ends = trace.detail["end_ns"][trace.rows_of(Kind.SPAN, Phase.BLOCKED)]
    return np.sort(ends[ends > 0])


def _within_backward(columns: Recorded, sync_ends: Ints) -> Ints:
    """Completions of buckets, none later than the end of their backward.

    The callback that stamps a completion needs the interpreter's lock and may come after the thread
    that waited has gone on.
    """
    completion = columns.completion_ns
    if not len(sync_ends):
        return completion
    index = _counted_up_to(sync_ends, columns.arrival_ns)
    has_end = (index < len(sync_ends)) & ((columns.flags & int(Flag.BUCKET)) > 0)
    latest = sync_ends[np.minimum(index, len(sync_ends) - 1)]
    return np.where(has_end & (completion >= 0), np.minimum(completion, latest), completion)


def _counted_up_to(bounds: Ints, times: Ints) -> Ints:
    """How many of the sorted bounds are no later than each time.

    Where times rise, the few bounds are looked up among the many times.
    """
    if (times[1:] < times[:-1]).any():
        return np.searchsorted(bounds, times, "right")
    at = np.searchsorted(times, bounds)
    return np.repeat(np.arange(len(bounds) + 1), np.diff(at, prepend=0, append=len(times)))
