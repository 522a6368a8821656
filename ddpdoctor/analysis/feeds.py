"""What feeds the training: loaders, their lengths, what ranks draw in common, sizes of batches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.overlap import overlaps
from ddpdoctor.deliveries import LoaderEpoch
from ddpdoctor.events import LoaderInfo
from ddpdoctor.tracefile import RankTrace


@dataclass(frozen=True)
class LoaderFeed:
    """One loader on one rank: what it is, and what it delivered in all recorded epochs."""

    rank: int
    info: LoaderInfo
    epochs: int
    batches: int | None  # of the longest epoch
    samples: int | None  # of all epochs together


@dataclass(frozen=True)
class SharedDraws:
    """What two ranks drew in common in one epoch; `share` is of the smaller one's, 0 to 1."""

    ranks: tuple[int, int]
    loader: int
    epoch: int
    share: float


@dataclass(frozen=True)
class BatchSizes:
    """What one rank gave to a model a reduction: its weight in the averaged gradient."""

    rank: int
    model: int
    reductions: int
    samples: float  # mean
    least: int
    most: int


def loader_feeds(analysis: Analysis) -> tuple[LoaderFeed, ...]:
    """By loader and rank."""
    feeds = [_feed(trace, info) for trace in analysis.run.ranks for info in trace.loaders.values()]
    return tuple(sorted(feeds, key=lambda feed: (feed.info.loader, feed.rank)))


def _feed(trace: RankTrace, info: LoaderInfo) -> LoaderFeed:
    epochs: list[LoaderEpoch] = [each for each in trace.epochs if each.loader == info.loader]
    samples = [each.samples for each in epochs if each.samples is not None]
    return LoaderFeed(
        trace.info.rank,
        info,
        len(epochs),
        max((each.batches for each in epochs), default=None),
        sum(samples) if samples else None,
    )


def shared_draws(analysis: Analysis) -> tuple[SharedDraws, ...]:
    """Pairs of ranks, those that share most in front; of each pair and loader the worst epoch."""
    worst: dict[tuple[tuple[int, int], int], SharedDraws] = {}
    for each in overlaps(analysis.run.ranks, analysis.world_size):
        key = each.ranks, each.loader
        if key not in worst or each.share > worst[key].share:
            worst[key] = SharedDraws(each.ranks, each.loader, each.epoch, each.share)
    return tuple(sorted(worst.values(), key=lambda draws: (-draws.share, draws.ranks)))


def batch_sizes(analysis: Analysis) -> tuple[BatchSizes, ...]:
    """By model and rank."""
    found: dict[int, list[BatchSizes]] = defaultdict(list)
    for trace in analysis.run.ranks:
        for model, runs in trace.model.batches.items():
            reductions = sum(run.syncs for run in runs)
            if not reductions:
                continue
            total = sum(run.samples * run.syncs for run in runs)
            sizes = [run.samples for run in runs]
            found[model].append(
                BatchSizes(trace.info.rank, model, reductions, total / reductions,
                           min(sizes), max(sizes))
            )  # fmt: skip
    return tuple(each for model in sorted(found) for each in found[model])
