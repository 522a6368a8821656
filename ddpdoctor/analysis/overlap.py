"""What ranks drew in common, and whether equal indices were equal samples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from ddpdoctor.events import INDEX_ITSELF, DrawnIndices
from ddpdoctor.sketch import index_hash_shares
from ddpdoctor.tracefile import RankTrace

LEAST_DRAWN: Final = 16  # an epoch of fewer samples says little
CONTENTS_NEEDED: Final = 16  # fewer say nothing of how often values agree
ABOVE_CHANCE: Final = 0.5  # halfway from agreeing by chance to agreeing always
UNIQUE_ABOVE_CHANCE: Final = 0.2  # images that are flipped or not still agree half of the time
DEVIATIONS: Final = 5.0  # over chance; many pairs of ranks and epochs are looked at
NEARLY_UNIQUE: Final = 0.9  # values per sample: images have such tensors, labels do not
HARDLY_EVER: Final = 0.05

ALL_PAIRS_OF: Final = 16  # ranks; the pairs of more are too many to look at each
EPOCHS_OF_MANY: Final = 1  # and the last
LOADERS_OF_MANY: Final = 4
PADDING: Final = 2  # samples that two ranks share by padding: each is filled up with one at most

RESEMBLES: Final = 0.3  # correlation above that with the next sample; two shards have none

Pairs = list[tuple[int, int]]


class Contents(IntEnum):
    """Whether two ranks' samples of equal indices are the same; the higher, the surer of it."""

    DIFFERENT = 0
    UNKNOWN = 1
    ALIKE = 2  # their labels agree, and the rest does not: augmentation would do that
    SAME = 3


@dataclass(frozen=True)
class Overlap:
    """What two ranks drew in common in one epoch of one loader.

    `share` is of the smaller of the two epochs, beyond the padding by which a
    DistributedSampler evens out its ranks, scaled up where only a sample of the indices was kept.
    `own_repeats` is the share of its draws that repeat a rank's own, of the rank with less.
    """

    ranks: tuple[int, int]
    loader: int
    epoch: int
    share: float
    own_repeats: float
    compared: int
    contents: Contents


@dataclass(frozen=True)
class _Epoch:
    drawn: DrawnIndices
    contents: dict[int, tuple[int, ...] | None]
    levels: dict[int, float | None]

    @classmethod
    def of(cls, drawn: DrawnIndices) -> _Epoch:
        return cls(
            drawn,
            dict(zip(drawn.indices, drawn.contents, strict=True)),
            dict(zip(drawn.indices, drawn.levels, strict=False)),  # none in older records
        )

    @property
    def own_repeats(self) -> float:
        """Share of its draws that repeat its own."""
        return self.drawn.repeats / max(1, self.drawn.repeats + len(self.contents))


def overlaps(traces: Sequence[RankTrace], world_size: int) -> Iterator[Overlap]:
    """Pairs of ranks that share a DDP group, for each epoch that both recorded.

    All pairs of few ranks. Of many each rank's with the one that it shares most with, so that
    time and memory grow with the ranks and not with their square.
    """
    for key in _epochs_to_look_at(traces):
        having = [(trace, own) for trace in traces if (own := _drawn_in(trace, key)) is not None]
        epochs: dict[int, _Epoch] = {}
        for a, b in _pairs(having):
            (first, _), (second, _) = having[a], having[b]
            ranks = _ranks_together(first, second, world_size)
            if not ranks or not _same_loader(first, second, key[0]):
                continue
            for at in (a, b):
                epochs.setdefault(at, _Epoch.of(having[at][1]))
            yield _overlap((first.info.rank, second.info.rank), epochs[a], epochs[b], ranks)


def _epochs_to_look_at(traces: Sequence[RankTrace]) -> list[tuple[int, int]]:
    """By loader and epoch; of many ranks the first epoch and the last tell enough."""
    keys = sorted({(d.loader, d.epoch) for trace in traces for d in trace.drawn})
    if len(traces) <= ALL_PAIRS_OF:
        return keys
    chosen = []
    for loader in sorted({loader for loader, _ in keys})[:LOADERS_OF_MANY]:
        own = [key for key in keys if key[0] == loader]
        chosen += [*own[:EPOCHS_OF_MANY], *own[EPOCHS_OF_MANY:][-1:]]
    return chosen


def _drawn_in(trace: RankTrace, key: tuple[int, int]) -> DrawnIndices | None:
    found = (d for d in trace.drawn if (d.loader, d.epoch) == key and d.drawn >= LEAST_DRAWN)
    return next(found, None)


def _pairs(having: Sequence[tuple[RankTrace, DrawnIndices]]) -> Iterator[tuple[int, int]]:
    """Positions of ranks to compare."""
    if len(having) <= ALL_PAIRS_OF:
        yield from combinations(range(len(having)), 2)
        return
    together: dict[object, list[int]] = defaultdict(list)
    for position, (trace, _) in enumerate(having):
        together[trace.ddp_groups].append(position)
    for positions in together.values():
        for a, b in _best_partners([having[position][1] for position in positions]):
            yield positions[a], positions[b]


def _best_partners(drawn: Sequence[DrawnIndices]) -> Iterator[tuple[int, int]]:
    """Each rank with the one it shares most with, of those next to it at the same index."""
    owners = np.repeat(np.arange(len(drawn)), [len(each.indices) for each in drawn])
    indices = np.concatenate([np.asarray(each.indices, np.int64) for each in drawn])
    order = np.lexsort((owners, indices))
    owners, indices = owners[order], indices[order]
    neighbours = (indices[1:] == indices[:-1]) & (owners[1:] != owners[:-1])
    codes = owners[:-1][neighbours] * len(drawn) + owners[1:][neighbours]
    pairs, shared = np.unique(codes, return_counts=True)
    paired: set[int] = set()
    for code in pairs[np.argsort(-shared, kind="stable")].tolist():
        pair = divmod(code, len(drawn))
        if not paired.issuperset(pair):
            paired.update(pair)
            yield pair


def _ranks_together(first: RankTrace, second: RankTrace, world_size: int) -> int:
    """How many ranks reduce gradients together, these two among them; 0 where the two do not.

    Ranks that split a model between them may well be given the same samples.
    """
    if not first.ddp_groups or not second.ddp_groups:
        return world_size
    common = {group.ranks for group in first.ddp_groups} & {
        group.ranks for group in second.ddp_groups
    }
    return max((len(ranks) for ranks in common), default=0)


def _same_loader(first: RankTrace, second: RankTrace, number: int) -> bool:
    """Ranks number their loaders each for itself, in the order of use."""
    if number not in first.loaders or number not in second.loaders:
        return True
    own, other = first.loaders[number], second.loaders[number]
    return (own.site, own.dataset) == (other.site, other.dataset)


def _overlap(ranks: tuple[int, int], own: _Epoch, other: _Epoch, together: int) -> Overlap:
    kept = min(own.drawn.threshold, other.drawn.threshold)
    common = sorted(own.contents.keys() & other.contents.keys())
    hashes = index_hash_shares(common)
    common = [index for index, at in zip(common, hashes, strict=True) if at <= kept]
    repeated = max(0.0, len(common) / kept - min(together - 1, PADDING))
    pairs = [
        (a, b)
        for index in common
        if (a := own.contents[index]) is not None and (b := other.contents[index]) is not None
    ]
    return Overlap(
        ranks,
        own.drawn.loader,
        own.drawn.epoch,
        repeated / min(own.drawn.drawn, other.drawn.drawn),
        min(own.own_repeats, other.own_repeats),
        len(pairs),
        _compared(pairs, resemble=_resemble(common, own, other)),
    )


def _resemble(common: Sequence[int], own: _Epoch, other: _Epoch) -> bool:
    """Whether samples of equal indices are more like each other than like their neighbours.

    An image stays about as bright when it is cropped and flipped. Neighbours share the class
    where samples are sorted by it.
    """
    levels = [
        (a, b)
        for index in common
        if (a := own.levels.get(index)) is not None and (b := other.levels.get(index)) is not None
    ]
    if len(levels) < CONTENTS_NEEDED:
        return False
    mine, theirs = np.array(levels).T
    above = _rank_correlation(mine, theirs) - _rank_correlation(mine[:-1], theirs[1:])
    return above >= max(RESEMBLES, DEVIATIONS / sqrt(len(levels)))


def _rank_correlation(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])


def _compared(
    pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], *, resemble: bool
) -> Contents:
    """What the tensors of the samples, in the order of their indices, say together.

    A tensor with a value of its own for nearly every sample (an image) that agrees settles it.
    If one never agrees, the samples differ or are augmented. Labels that agree do not tell these
    apart: two shards may well have the same labels in the same order. Then the samples
    themselves must resemble each other. A tensor that holds the index says nothing.
    """
    tensors = min((min(len(a), len(b)) for a, b in pairs), default=0)
    columns = [_Column.of([(a[k], b[k]) for a, b in pairs]) for k in range(tensors)]
    columns = [column for column in columns if column.count >= CONTENTS_NEEDED]
    if not columns:
        return Contents.UNKNOWN
    differs = any(column.nearly_unique and column.agree <= HARDLY_EVER for column in columns)
    agreeing = [column for column in columns if column.agrees]
    if not differs and any(column.nearly_unique for column in agreeing):
        return Contents.SAME
    if agreeing and resemble:
        return Contents.ALIKE
    told = not agreeing and any(column.tells for column in columns)
    return Contents.DIFFERENT if told else Contents.UNKNOWN


@dataclass(frozen=True)
class _Column:
    """One tensor of the compared samples: how its values are spread, and how often they agree."""

    count: int
    values: int
    agree: float
    chance: float  # of agreeing, if the two ranks' values had nothing to do with each other

    @classmethod
    def of(cls, pairs: Pairs) -> _Column:
        pairs = [pair for pair in pairs if INDEX_ITSELF not in pair]
        count = max(1, len(pairs))
        mine, theirs = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
        return cls(
            len(pairs),
            len(mine),
            sum(a == b for a, b in pairs) / count,
            sum(seen * theirs[value] for value, seen in mine.items()) / count**2,
        )

    @property
    def nearly_unique(self) -> bool:
        return self.values >= NEARLY_UNIQUE * self.count

    @property
    def tells(self) -> bool:
        """Whether agreeing always would stand out from agreeing by chance."""
        deviation = sqrt(self.chance * (1 - self.chance) / self.count)
        return self.chance < 1 and 1 - self.chance >= DEVIATIONS * deviation

    @property
    def agrees(self) -> bool:
        deviation = sqrt(self.chance * (1 - self.chance) / self.count)
        share = UNIQUE_ABOVE_CHANCE if self.nearly_unique else ABOVE_CHANCE
        least = max(share * (1 - self.chance), DEVIATIONS * deviation)
        return self.tells and self.agree - self.chance >= least
