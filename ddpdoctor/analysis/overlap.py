"""What ranks drew in common, and whether equal indices were equal samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import combinations, pairwise
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
IN_ORDER: Final = 2.0  # changes along the indices per value; 1 where samples are sorted by it

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

    @property
    def own_repeats(self) -> float:
        return self.drawn.repeats / max(1, self.drawn.repeats + len(self.contents))


def overlaps(traces: Sequence[RankTrace], world_size: int) -> Iterator[Overlap]:
    """Every pair of ranks that share a DDP group, for each epoch that both recorded."""
    epochs = {trace.info.rank: _epochs(trace) for trace in traces}
    for first, second in combinations(traces, 2):
        ranks = _ranks_together(first, second, world_size)
        theirs = epochs[second.info.rank]
        for key, own in epochs[first.info.rank].items() if ranks else ():
            if key in theirs and _same_loader(first, second, key[0]):
                yield _overlap((first.info.rank, second.info.rank), own, theirs[key], ranks)


def _epochs(trace: RankTrace) -> dict[tuple[int, int], _Epoch]:
    return {
        (drawn.loader, drawn.epoch): _Epoch(
            drawn,
            dict(zip(drawn.indices, drawn.contents, strict=True)),
            dict(zip(drawn.indices, drawn.levels, strict=False)),  # none in older records
        )
        for drawn in trace.drawn
        if drawn.drawn >= LEAST_DRAWN
    }


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
    repeated = max(0.0, len(common) / kept - (together - 1))
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
    If one never agrees, the samples differ or are augmented. Labels that agree tell these
    apart, unless they follow the order of the indices: two shards that are sorted by class have
    equal labels at equal indices, and then the samples themselves must resemble each other.
    A tensor that holds the index says nothing.
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
    if any(resemble or not column.in_order for column in agreeing):
        return Contents.ALIKE
    told = not agreeing and any(column.tells for column in columns)
    return Contents.DIFFERENT if told else Contents.UNKNOWN


@dataclass(frozen=True)
class _Column:
    """One tensor of the compared samples: how its values are spread, and how often they agree."""

    count: int
    values: int
    changes: int  # from one index to the next
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
            sum(before[0] != after[0] for before, after in pairwise(pairs)),
            sum(a == b for a, b in pairs) / count,
            sum(seen * theirs[value] for value, seen in mine.items()) / count**2,
        )

    @property
    def nearly_unique(self) -> bool:
        return self.values >= NEARLY_UNIQUE * self.count

    @property
    def in_order(self) -> bool:
        return self.changes <= IN_ORDER * self.values

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
