"""Batches that a rank was given and did not learn from: told at the end of an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpdoctor.analysis.modelcauses import OFTEN
from ddpdoctor.deliveries import LoaderEpoch
from ddpdoctor.events import Site
from ddpdoctor.tracefile import RankTrace, Run


@dataclass(frozen=True)
class Dropped:
    """An epoch that gave all ranks as many batches, after which their reductions differ."""

    epoch: int
    batches: int
    syncs: dict[int, int]  # by rank, when the epoch had ended
    site: Site | None  # where the loader is iterated

    @property
    def by(self) -> int:
        return max(self.syncs.values()) - min(self.syncs.values())

    @property
    def ranks(self) -> tuple[int, ...]:
        fewest = min(self.syncs.values())
        return tuple(rank for rank, count in self.syncs.items() if count == fewest)


def dropped_batches(run: Run, ranks: Sequence[int]) -> Dropped | None:
    """The first such epoch. Loaders within `Join`, and of different lengths, do not tell."""
    traces = [trace for trace in run.ranks if trace.info.rank in ranks]
    numbers = set.intersection(*(set(trace.loaders) for trace in traces)) if traces else set()
    for number in sorted(numbers):
        if any(trace.loaders[number].joined for trace in traces):
            continue
        found = _of_loader(number, traces)
        if found is not None:
            return found
    return None


def _of_loader(number: int, traces: Sequence[RankTrace]) -> Dropped | None:
    epochs = {trace.info.rank: _ended(trace, number) for trace in traces}
    for epoch in range(min(len(own) for own in epochs.values())):
        same = {rank: own[epoch] for rank, own in epochs.items()}
        if len({(each.epoch, each.batches) for each in same.values()}) > 1:
            return None
        syncs = {rank: each.last_sync for rank, each in same.items()}
        gap = max(syncs.values()) - min(syncs.values())
        if gap:
            first = next(iter(same.values()))
            found = Dropped(first.epoch, first.batches, syncs, traces[0].loaders[number].site)
            return found if gap <= OFTEN * max(syncs.values()) else None
    return None


def _ended(trace: RankTrace, number: int) -> list[LoaderEpoch]:
    """The passes over a loader from the first on that came to their end."""
    own = sorted((e for e in trace.epochs if e.loader == number), key=lambda each: each.epoch)
    ended = []
    for expected, each in enumerate(own):
        if not each.ended or each.epoch != expected:
            break
        ended.append(each)
    return ended
