"""Stack samples of all ranks: how much more often one of them was seen in a phase, and where."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ddpdoctor.events import HotLine, Phase, Site
from ddpdoctor.findings import Location
from ddpdoctor.tracefile import Run


class HotLines:
    """A question costs as much as the rank has lines of its own, however many ranks there are."""

    def __init__(self, lines: Mapping[int, tuple[HotLine, ...]]) -> None:
        self._own: dict[tuple[int, Phase], Counter[Site]] = defaultdict(Counter)
        for rank, of_rank in lines.items():
            for line in of_rank:
                self._own[rank, line.phase][line.site] += line.samples
        totals: dict[Phase, list[int]] = defaultdict(list)
        by_site: dict[tuple[Phase, Site], list[int]] = defaultdict(list)
        for (_, phase), own in self._own.items():
            totals[phase].append(own.total())
            for site, samples in own.items():
                by_site[phase, site].append(samples)
        self._totals = {phase: _Samples(each, len(lines)) for phase, each in totals.items()}
        self._sites = {key: _Samples(each, len(lines)) for key, each in by_site.items()}

    @classmethod
    def of(cls, run: Run) -> HotLines:
        return cls({trace.info.rank: trace.hot_lines for trace in run.ranks})

    def beyond_others(self, phase: Phase, ranks: Sequence[int]) -> tuple[int, Location | None]:
        """Samples of the first of these ranks beyond the other ranks', and its line of most."""
        if not ranks:
            return 0, None
        counters = [self._own.get((rank, phase), Counter()) for rank in ranks]
        own = counters[0]
        if not own:
            return 0, None
        usual = self._totals[phase].median_without([each.total() for each in counters])
        more = {
            site: samples
            - self._sites[phase, site].median_without([each[site] for each in counters])
            for site, samples in own.items()
        }
        site = max(more, key=lambda each: more[each])
        where = Location(ranks[0], site.file, site.line, site.function) if more[site] > 0 else None
        return max(0, own.total() - usual), where


class _Samples:
    """How often each rank was seen; those that were not need not be listed."""

    def __init__(self, samples: list[int], ranks: int) -> None:
        self._seen = sorted(each for each in samples if each > 0)
        self._ranks = ranks

    def median_without(self, samples: Sequence[int]) -> int:
        """Of the other ranks, where these are those of the ranks left out; 0 where none is left."""
        left = self._ranks - len(samples)
        if left <= 0:
            return 0
        places = self._places(samples)
        unseen = left - (len(self._seen) - len(places))

        def nth(number: int) -> int:
            if number < unseen:
                return 0
            index = number - unseen
            for place in places:
                index += place <= index
            return self._seen[index]

        return (nth((left - 1) // 2) + nth(left // 2)) // 2

    def _places(self, samples: Sequence[int]) -> list[int]:
        """Where those left out stand among those seen; equal ones one after the other."""
        counts = Counter(each for each in samples if each > 0)
        return [
            bisect_left(self._seen, each) + i
            for each in sorted(counts)
            for i in range(counts[each])
        ]
