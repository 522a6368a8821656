"""Each rank's clock brought onto the common one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ddpdoctor.events import RankInfo

FARTHEST_NS: Final = 366 * 86_400 * 10**9  # between the beginnings of two ranks of one run


@dataclass(frozen=True)
class CommonClock:
    """Offsets to add to each rank's monotonic nanoseconds, and whether they can be trusted.

    Ranks of one boot and one time namespace share CLOCK_MONOTONIC: offset 0, error 0. Between
    hosts only the wall clocks are known, which is enough to draw and not to split waiting from
    transfer: `comparable` is then False.
    """

    offsets_ns: dict[int, int]
    comparable: bool


def common_clock(ranks: Sequence[RankInfo]) -> CommonClock:
    """The clock of the first rank, onto which the others are brought."""
    first = ranks[0]
    return CommonClock(
        {info.rank: _offset_ns(first, info) for info in ranks},
        all(_share_a_clock(first, info) for info in ranks),
    )


def _share_a_clock(first: RankInfo, info: RankInfo) -> bool:
    apart_ns = abs(info.began_ns - first.began_ns)
    return info.clock_id == first.clock_id and apart_ns <= FARTHEST_NS


def _offset_ns(first: RankInfo, info: RankInfo) -> int:
    """Where the wall clocks cannot be true, ranks are taken to have begun at one moment."""
    if _share_a_clock(first, info):
        return 0
    offset_ns = info.wall_minus_monotonic_ns - first.wall_minus_monotonic_ns
    apart_ns = abs(info.began_ns + offset_ns - first.began_ns)
    return offset_ns if apart_ns <= FARTHEST_NS else first.began_ns - info.began_ns
