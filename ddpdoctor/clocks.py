"""Each rank's clock brought onto the common one."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from ddpdoctor.events import ClockOffset, RankInfo
from ddpdoctor.plausible import EARLIEST_NS, LATEST_NS
from ddpdoctor.tracefile import RankTrace

Ints = npt.NDArray[np.int64]

FARTHEST_NS: Final = 366 * 86_400 * 10**9  # between the beginnings of two ranks of one run
# How fast clocks run apart, as a share of the time. Computers' quartzes are within some 25 ppm
# each. Around the drift that was measured over ten minutes they wander far less: by temperature,
# and by what NTP corrects.
DRIFT: Final = 50e-6
WANDER: Final = 5e-6
# What is faster is no drift: a virtual machine was suspended, or the file is damaged.
MOST_DRIFT: Final = 0.01
_STEEPEST: Final = 0.5  # below 1, so that no time runs backwards


@dataclass(frozen=True)
class RankClock:
    """What brings one rank's times onto the common clock: measurements, the earliest first.

    Between two of them the offset is interpolated; before the first and after the last it stays.
    """

    measured: tuple[ClockOffset, ...]
    drifts: bool = True  # False where the offset is exact for all times

    def to_common(self, times_ns: Ints) -> Ints:
        """Times of the rank on the common clock; their order stays."""
        first = self.measured[0]
        if len(self.measured) == 1:
            return times_ns + first.offset_ns
        at = np.array([each.at_ns - first.at_ns for each in self.measured], np.float64)
        change = np.array([each.offset_ns - first.offset_ns for each in self.measured], np.float64)
        since = np.interp(times_ns - first.at_ns, at, change)
        return times_ns + first.offset_ns + np.rint(since).astype(np.int64)

    def error_ns(self, times_ns: Ints) -> Ints:
        """How far the common time may be off: most, between two measurements, half-way."""
        if not self.drifts:
            return np.zeros(len(times_ns), np.int64)
        at = np.array([each.at_ns for each in self.measured], np.int64)
        errors = [float(each.error_ns) for each in self.measured]
        place = np.searchsorted(at, times_ns)
        before, after = np.maximum(place - 1, 0), np.minimum(place, len(at) - 1)
        nearest = np.minimum(np.abs(times_ns - at[before]), np.abs(times_ns - at[after]))
        outside = (times_ns < at[0]) | (times_ns > at[-1])
        grown = nearest * np.where(outside, DRIFT, WANDER)
        own = np.interp(times_ns - at[0], at - at[0], errors)
        return np.asarray(np.ceil(own + grown), np.int64)

    def worst_error_ns(self, begin_ns: int, end_ns: int) -> int:
        """The largest error from begin to end."""
        at = [each.at_ns for each in self.measured]
        half_way = [(before + after) // 2 for before, after in pairwise(at)]
        turning = np.clip(np.array([begin_ns, end_ns, *at, *half_way]), begin_ns, end_ns)
        return int(self.error_ns(turning).max())


def shifted(offset_ns: int) -> RankClock:
    """A clock that is ahead by as much at all times."""
    return RankClock((ClockOffset(offset_ns, 0, 0),), drifts=False)


@dataclass(frozen=True)
class CommonClock:
    """The clock of each rank, and whether they can be compared.

    Ranks of one boot and one time namespace share CLOCK_MONOTONIC: offset 0, error 0. Those
    of other hosts have measured theirs to rank 0; `error_ns` is the largest bound over the run.
    Where that is missing only the wall clocks are known, which is enough to draw and not to split
    waiting from transfer: `comparable` is then False.
    """

    ranks: dict[int, RankClock]
    comparable: bool
    error_ns: int = 0


def common_clock(traces: Sequence[RankTrace]) -> CommonClock:
    """The clock of rank 0 where all are known against it, else that of the first rank."""
    by_clock: dict[str, list[RankTrace]] = {}
    for trace in traces:
        by_clock.setdefault(trace.info.clock_id, []).append(trace)
    clocks = {trace.info.rank: _to_rank_0(trace, by_clock[trace.info.clock_id]) for trace in traces}
    known = {rank: clock for rank, clock in clocks.items() if clock is not None}
    if len(known) == len(traces):
        drifting = [trace for trace in traces if known[trace.info.rank].drifts]
        errors = [known[trace.info.rank].worst_error_ns(*_extent(trace)) for trace in drifting]
        return CommonClock(known, True, max(errors, default=0))
    first = traces[0].info
    return CommonClock(
        {trace.info.rank: shifted(_by_wall_clock(first, trace.info)) for trace in traces},
        all(_share_a_clock(first, trace.info) for trace in traces),
    )


def _to_rank_0(trace: RankTrace, alike: Sequence[RankTrace]) -> RankClock | None:
    """By what the ranks that share this clock have measured; None without or against reason.

    `alike` are those whose clock has the same name.
    """
    measured: list[ClockOffset] = []
    for other in alike:
        if not _share_a_clock(trace.info, other.info):
            continue
        if other.info.rank == 0:
            return shifted(0)
        measured += other.clocks
    kept = _in_harmony(each for each in measured if _in_time(each, trace.info.began_ns))
    return RankClock(kept) if kept else None


def _in_time(measured: ClockOffset, began_ns: int) -> bool:
    return began_ns - EARLIEST_NS <= measured.at_ns <= began_ns + LATEST_NS


def _in_harmony(measured: Iterable[ClockOffset]) -> tuple[ClockOffset, ...]:
    """Measurements in the order of time, the more exact of two that are too close together.

    Where two contradict each other by more than any drift, none: the clock has jumped between.
    """
    kept: list[ClockOffset] = []
    for each in sorted(measured, key=lambda m: (m.error_ns, m.at_ns, m.offset_ns)):
        place = bisect(kept, each.at_ns, key=lambda m: m.at_ns)
        neighbours = kept[max(0, place - 1) : place + 1]
        if any(_jumps(each, other) for other in neighbours):
            return ()
        if not any(_is_too_close(each, other) for other in neighbours):
            kept.insert(place, each)
    return tuple(kept)


def _jumps(one: ClockOffset, other: ClockOffset) -> bool:
    apart_ns = abs(one.at_ns - other.at_ns)
    beyond_errors = abs(one.offset_ns - other.offset_ns) - one.error_ns - other.error_ns
    return beyond_errors > MOST_DRIFT * apart_ns


def _is_too_close(one: ClockOffset, other: ClockOffset) -> bool:
    apart_ns = abs(one.at_ns - other.at_ns)
    return apart_ns == 0 or abs(one.offset_ns - other.offset_ns) > _STEEPEST * apart_ns


def _extent(trace: RankTrace) -> tuple[int, int]:
    """From the beginning of the record to its last time."""
    began = trace.info.began_ns
    times = (trace.detail["begin_ns"], trace.detail["end_ns"])
    return began, int(max(began, *(column.max(initial=0) for column in times)))


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
