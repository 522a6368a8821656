"""Where the training threads were seen: lines by samples, and where ranks stood at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.events import Phase, Site


@dataclass(frozen=True)
class SeenLine:
    """One line of the user's code in one phase, by the stack samples of all ranks."""

    phase: Phase
    site: Site
    samples: int
    by_rank: dict[int, int]
    share: float  # of all samples of the run
    most_rank: int
    most_share: float  # of the samples of that rank


@dataclass(frozen=True)
class LastSeen:
    """Where a rank stood, when nothing had moved or a signal came; innermost line first."""

    rank: int
    what: str
    seconds: float | None
    phase: Phase | None
    sites: tuple[Site, ...]


def seen_lines(analysis: Analysis) -> tuple[SeenLine, ...]:
    """Those seen most in front."""
    by_line: dict[tuple[Phase, Site], Counter[int]] = defaultdict(Counter)
    of_rank: Counter[int] = Counter()
    for trace in analysis.run.ranks:
        for line in trace.hot_lines:
            by_line[line.phase, line.site][trace.info.rank] += line.samples
            of_rank[trace.info.rank] += line.samples
    total = of_rank.total()
    lines = []
    for (phase, site), counts in by_line.items():
        most, samples = max(counts.items(), key=lambda item: (item[1] / of_rank[item[0]], -item[0]))
        share = samples / of_rank[most]
        lines.append(
            SeenLine(phase, site, counts.total(), dict(counts), counts.total() / total, most, share)
        )
    return tuple(sorted(lines, key=lambda line: (-line.samples, line.phase, line.site.line)))


def last_seen(analysis: Analysis) -> tuple[LastSeen, ...]:
    """By rank; empty where no rank stood still and none was told to end."""
    found = []
    for trace in analysis.run.ranks:
        rank, stall, stacks = trace.info.rank, trace.stall, trace.last_stacks
        if stall is not None:
            sites = (stall.site,) if stall.site is not None else ()
            found.append(LastSeen(rank, "stood still", stall.seconds, stall.phase, sites))
        for what, at_signal in (
            ("at SIGHUP", stacks.at_sighup), ("at SIGTERM", stacks.at_sigterm),
        ):  # fmt: skip
            if at_signal is not None:
                found.append(LastSeen(rank, what, None, None, at_signal))
        found += [LastSeen(rank, "held Python's lock", None, None, sites) for sites in stacks.stuck]
    return tuple(found)
