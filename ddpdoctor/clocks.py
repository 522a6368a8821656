"""Each rank's clock brought onto the common one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.events import RankInfo


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
    offsets = {
        info.rank: 0
        if info.clock_id == first.clock_id
        else info.wall_minus_monotonic_ns - first.wall_minus_monotonic_ns
        for info in ranks
    }
    return CommonClock(offsets, all(info.clock_id == first.clock_id for info in ranks))
