"""Each rank's clock brought onto the common one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ddpdoctor.events import RankInfo
from ddpdoctor.tracefile import RankTrace

FARTHEST_NS: Final = 366 * 86_400 * 10**9  # between the beginnings of two ranks of one run


@dataclass(frozen=True)
class CommonClock:
    """Offsets to add to each rank's monotonic nanoseconds, and whether they can be trusted.

    Ranks of one boot and one time namespace share CLOCK_MONOTONIC: offset 0, error 0. Those
    of other hosts have measured theirs to rank 0; `error_ns` is the largest bound. Where that
    is missing only the wall clocks are known, which is enough to draw and not to split
    waiting from transfer: `comparable` is then False.
    """

    offsets_ns: dict[int, int]
    comparable: bool
    error_ns: int = 0


def common_clock(traces: Sequence[RankTrace]) -> CommonClock:
    """The clock of rank 0 where all are known against it, else that of the first rank."""
    measured = [_to_rank_0(trace, traces) for trace in traces]
    known = [pair for pair in measured if pair is not None]
    if len(known) == len(traces):
        offsets = {trace.info.rank: known[i][0] for i, trace in enumerate(traces)}
        return CommonClock(offsets, True, max(error for _, error in known))
    first = traces[0].info
    return CommonClock(
        {trace.info.rank: _by_wall_clock(first, trace.info) for trace in traces},
        all(_share_a_clock(first, trace.info) for trace in traces),
    )


def _to_rank_0(trace: RankTrace, traces: Sequence[RankTrace]) -> tuple[int, int] | None:
    """Offset and error bound: measured by this rank, or by one that shares its clock."""
    for other in (trace, *traces):
        if not _share_a_clock(trace.info, other.info):
            continue
        if other.info.rank == 0:
            return 0, 0
        if other.clock is not None:
            return other.clock.offset_ns, other.clock.error_ns
    return None


def _share_a_clock(first: RankInfo, info: RankInfo) -> bool:
    apart_ns = abs(info.began_ns - first.began_ns)
    return info.clock_id == first.clock_id and apart_ns <= FARTHEST_NS


def _by_wall_clock(first: RankInfo, info: RankInfo) -> int:
    """Where the wall clocks cannot be true, ranks are taken to have begun at one moment."""
    if _share_a_clock(first, info):
        return 0
    offset_ns = info.wall_minus_monotonic_ns - first.wall_minus_monotonic_ns
    apart_ns = abs(info.began_ns + offset_ns - first.began_ns)
    return offset_ns if apart_ns <= FARTHEST_NS else first.began_ns - info.began_ns
