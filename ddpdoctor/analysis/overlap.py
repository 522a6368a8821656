"""What ranks drew in common, and whether equal indices were equal samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from ddpdoctor.events import DrawnIndices
from ddpdoctor.sketch import index_hash_shares
from ddpdoctor.tracefile import RankTrace

LEAST_DRAWN: Final = 16  # an epoch of fewer samples says little
CONTENTS_NEEDED: Final = 16  # fewer labels of two classes agree by chance too often
ABOVE_CHANCE: Final = 0.5  # halfway from agreeing by chance to agreeing always

Fingerprints = tuple[int, ...]
Pairs = list[tuple[Fingerprints, Fingerprints]]


@dataclass(frozen=True)
class Overlap:
    """What two ranks drew in common in one epoch of one loader.

    `share` is of the smaller of the two epochs, beyond the padding by which a
    DistributedSampler evens out its ranks, scaled up where only a sample of the indices was kept.
    `same_data` is None where too few contents could be compared.
    """

    ranks: tuple[int, int]
    loader: int
    epoch: int
    share: float
    compared: int
    same_data: bool | None


def overlaps(traces: Sequence[RankTrace], world_size: int) -> Iterator[Overlap]:
    """Every pair of ranks, for each epoch that both recorded."""
    for first, second in combinations(traces, 2):
        theirs = {(epoch.loader, epoch.epoch): epoch for epoch in second.drawn}
        for own in first.drawn:
            other = theirs.get((own.loader, own.epoch))
            if other is not None and min(own.drawn, other.drawn) >= LEAST_DRAWN:
                yield _overlap((first.info.rank, second.info.rank), own, other, world_size)


def _overlap(
    ranks: tuple[int, int], own: DrawnIndices, other: DrawnIndices, world_size: int
) -> Overlap:
    kept = min(own.threshold, other.threshold)
    mine = dict(zip(own.indices, own.contents, strict=True))
    theirs = dict(zip(other.indices, other.contents, strict=True))
    common = sorted(mine.keys() & theirs.keys())
    hashes = index_hash_shares(common)
    common = [index for index, at in zip(common, hashes, strict=True) if at <= kept]
    repeated = max(0.0, len(common) / kept - (world_size - 1))
    pairs = [
        (a, b)
        for index in common
        if (a := mine[index]) is not None and (b := theirs[index]) is not None
    ]
    return Overlap(
        ranks,
        own.loader,
        own.epoch,
        repeated / min(own.drawn, other.drawn),
        len(pairs),
        _same(pairs),
    )


def _same(pairs: Pairs) -> bool | None:
    """Whether any tensor of the samples agrees more often than its values do by chance.

    Augmentation changes the image and leaves the label; shards of two classes agree in half of
    their labels without having a sample in common.
    """
    if len(pairs) < CONTENTS_NEEDED:
        return None
    tensors = min(min(len(a), len(b)) for a, b in pairs)
    return any(_agrees([(a[k], b[k]) for a, b in pairs]) for k in range(tensors))


def _agrees(values: list[tuple[int, int]]) -> bool:
    count = len(values)
    mine, theirs = Counter(a for a, _ in values), Counter(b for _, b in values)
    chance = sum(seen * theirs[value] for value, seen in mine.items()) / count**2
    agree = sum(a == b for a, b in values) / count
    return len(mine) > 1 and agree > chance + ABOVE_CHANCE * (1 - chance)
