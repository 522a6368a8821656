"""Whether ranks hold the same samples at the same indices, and whether samples change by chance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import combinations, pairwise
from typing import Final

from ddpdoctor.events import INDEX_ITSELF, DrawnIndices
from ddpdoctor.tracefile import RankTrace

LEAST_PAIRS: Final = 16  # of looks at one index; fewer say little
NEARLY_ALL: Final = 0.9  # of them agree, or have values of their own
HARDLY_ANY: Final = 0.1
ELSEWHERE: Final = 0.02  # of a rank's samples seen at other indices on another rank
LEAST_ELSEWHERE: Final = 8
ABOVE_OWN_DUPLICATES: Final = 5.0  # times as often as a rank holds one sample twice
MOST_RANKS: Final = 16  # that are compared; neighbours of more
_Seen = dict[int, list[tuple[int, ...]]]  # by index: the fingerprints at each look


class Items(IntEnum):
    """What the delivered samples say of two ranks' datasets."""

    SAME = 0
    UNKNOWN = 1
    OTHER = 2  # other samples at equal indices
    MOVED = 3  # the same samples at other indices


def are_random(trace: RankTrace, loader: int) -> bool | None:
    """Whether a rank got other content for an index in a later epoch; None where it is not known.

    Then the samples are augmented, at random.
    """
    verdicts = [_agree(_own_looks(_seen(trace, loader)), tensor) for tensor in range(2)]
    known = [verdict for verdict in verdicts if verdict is not None]
    if not known:
        return None
    return any(agree <= HARDLY_ANY for agree in known)


def compare(traces: Sequence[RankTrace], loader: int, *, drawn_alike: bool) -> Items:
    """Of all ranks: the worst that was seen of two of them.

    With `drawn_alike` random numbers may have made a sample the same at two indices, unless it was
    seen to stay what it is.
    """
    seen = {trace.info.rank: _seen(trace, loader) for trace in traces[:MOST_RANKS]}
    verdicts = [_compare(seen[a], seen[b]) for a, b in _pairs(sorted(seen))]
    random = [are_random(trace, loader) for trace in traces[:MOST_RANKS]]
    may_be_by_chance = any(random) or (drawn_alike and False not in random)
    if not may_be_by_chance and _seen_elsewhere(traces[:MOST_RANKS], loader):
        return Items.MOVED
    return max(verdicts, default=Items.UNKNOWN)


def _pairs(ranks: list[int]) -> Iterator[tuple[int, int]]:
    return iter(combinations(ranks, 2)) if len(ranks) <= 4 else pairwise(ranks)


def _seen(trace: RankTrace, loader: int) -> _Seen:
    looks: _Seen = defaultdict(list)
    for drawn in trace.drawn:
        if drawn.loader == loader:
            for index, parts in zip(drawn.indices, drawn.contents, strict=True):
                if parts is not None:
                    looks[index].append(parts)
    return looks


def _own_looks(seen: _Seen) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(looks[0], looks[1]) for looks in seen.values() if len(looks) > 1]


def _agree(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], tensor: int) -> float | None:
    """How often one tensor of the samples agrees, if it has a value of its own for nearly each."""
    values = [
        (a[tensor], b[tensor])
        for a, b in pairs
        if len(a) > tensor < len(b) and INDEX_ITSELF not in (a[tensor], b[tensor])
    ]
    if len(values) < LEAST_PAIRS or len({a for a, _ in values}) < NEARLY_ALL * len(values):
        return None
    return sum(a == b for a, b in values) / len(values)


def _compare(own: _Seen, other: _Seen) -> Items:
    pairs = [(own[index][0], other[index][0]) for index in own.keys() & other.keys()]
    for tensor in range(2):
        across = _agree(pairs, tensor)
        if across is None:
            continue
        if across >= NEARLY_ALL:
            return Items.SAME
        alone = [_agree(_own_looks(seen), tensor) for seen in (own, other)]
        stays = [agree for agree in alone if agree is not None]
        if across <= HARDLY_ANY and stays and min(stays) >= NEARLY_ALL:
            return Items.OTHER
    return Items.UNKNOWN


def _seen_elsewhere(traces: Sequence[RankTrace], loader: int) -> bool:
    """Whether one epoch has a sample on two ranks, at another index on each."""
    epochs = sorted({d.epoch for trace in traces for d in trace.drawn if d.loader == loader})
    return any(
        _twice_in(
            [d for t in traces for d in t.drawn if (d.loader, d.epoch) == (loader, epoch)], tensor
        )
        for epoch in epochs[:2]
        for tensor in range(2)
    )


def _twice_in(drawn: Sequence[DrawnIndices], tensor: int) -> bool:
    owners: dict[int, dict[int, int]] = defaultdict(dict)  # by value: index by position of rank
    total = duplicates = 0
    for position, each in enumerate(drawn):
        for index, parts in zip(each.indices, each.contents, strict=True):
            if parts is None or len(parts) <= tensor or parts[tensor] == INDEX_ITSELF:
                continue
            total += 1
            duplicates += position in owners[parts[tensor]]
            owners[parts[tensor]][position] = index
    elsewhere = sum(len(ranks) - 1 for ranks in owners.values() if len(set(ranks.values())) > 1)
    if elsewhere < LEAST_ELSEWHERE or duplicates > HARDLY_ANY * total:
        return False
    return elsewhere >= max(ELSEWHERE * total, ABOVE_OWN_DUPLICATES * duplicates)
