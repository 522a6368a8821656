"""Of a report as text: the parts of a step that are material, and the user's named spans."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ddpdoctor.analysis.model import Analysis, NamedTime, RankStats
from ddpdoctor.events import Part
from ddpdoctor.terminal import said
from ddpdoctor.wording import rank_list

MATERIAL = 0.05  # of a rank's step: less is no reason to look further
LEAST_MS = 1.0  # and no less: a scheduler's time slice is a few of them
PRESSURE_MATERIAL = 0.2  # likewise; some task of a host waits for storage now and then
SHOWN_NAMES = 5
SHOWN_RANKS = 8
_SAID = {
    Part.RUN_QUEUE: "waiting for a CPU",
    Part.GC: "garbage collection",
    Part.THROTTLED: "held back by a CPU quota (part of the waiting for a CPU)",
    Part.IO: "waiting for storage",
    Part.IO_PRESSURE: "some task of the host or container waiting for storage",
    Part.H2D: "copies to the device",
}


def material_parts(analysis: Analysis) -> Iterator[Text]:
    """One line for each part that takes a material share of some rank's step."""
    for part, words in _SAID.items():
        shares = [(_part_ms(stats, part), stats) for stats in analysis.ranks]
        large = [
            (ms, stats) for ms, stats in shares if ms is not None and _is_material(part, ms, stats)
        ]
        if large:
            large.sort(key=lambda pair: -pair[0])
            shown = ", ".join(f"rank {stats.rank} {ms:.1f}" for ms, stats in large[:SHOWN_RANKS])
            more = f" and {len(large) - SHOWN_RANKS} more" if len(large) > SHOWN_RANKS else ""
            yield Text(f"of a step, {words}: {shown} ms{more}")


def _part_ms(stats: RankStats, part: Part) -> float | None:
    ms: float | None = getattr(stats.times, f"{part.label}_ms", None)
    return ms


def _is_material(part: Part, ms: float, stats: RankStats) -> bool:
    share = PRESSURE_MATERIAL if part is Part.IO_PRESSURE else MATERIAL
    return stats.times is not None and ms >= max(LEAST_MS, share * stats.times.step_ms)


def named_spans(analysis: Analysis) -> Iterator[Text]:
    """One line a name, those first that take most on some rank."""
    for named in analysis.named[:SHOWN_NAMES]:
        yield said(f"span {named.name}: {_by_rank(named)} ms a step")
    hidden = len(analysis.named) - SHOWN_NAMES
    if hidden > 0:
        yield Text(f"… {hidden} more names")


def _by_rank(named: NamedTime) -> str:
    """Every rank where they are few, else the extremes."""
    times = named.ms_by_rank
    if len(times) <= SHOWN_RANKS:
        return ", ".join(f"rank {rank} {ms:.1f}" for rank, ms in sorted(times.items()))
    least, most = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    return (
        f"{rank_list([least])} {times[least]:.1f} (least) to {rank_list([most])} "
        f"{times[most]:.1f} (most)"
    )
