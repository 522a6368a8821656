"""Which parameters each bucket holds, as far as the sizes of both tell.

DDP fills its buckets in the order in which gradients were ready in the first backward; where it
looks for unused parameters it keeps the model's order, the last first. An order is taken for the
true one only where it gives each bucket exactly the bytes that it had.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.analysis.bucketing import nbytes_of
from ddpdoctor.analysis.buckets import BucketStats
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.modelevents import WatchedTensor

Sizes = Mapping[int, set[int]]  # bytes by bucket; several where models share a group


@dataclass(frozen=True)
class BucketParameters:
    """The parameters of one bucket, in the order of their gradients."""

    group: int
    bucket: int
    nbytes: int
    model: str
    names: tuple[str, ...]

    @property
    def key(self) -> tuple[int, int, int]:
        return self.group, self.bucket, self.nbytes


def bucket_parameters(
    models: Sequence[ModelGroup], buckets: Sequence[BucketStats]
) -> tuple[BucketParameters, ...]:
    """In the order of the buckets; those that two models fit are left out."""
    sizes: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for each in buckets:
        sizes[each.group][each.bucket].add(each.nbytes)
    found = [
        part
        for model in models
        if model.is_wrapped
        for group, of_group in sizes.items()
        for part in _fitted(model, group, of_group)
    ]
    fits = Counter(part.key for part in found)
    return tuple(sorted((p for p in found if fits[p.key] == 1), key=lambda part: part.key))


def _fitted(model: ModelGroup, group: int, sizes: Sizes) -> tuple[BucketParameters, ...]:
    """By the first order that gives the buckets their bytes; nothing where none does."""
    for order in _orders(model):
        parts = _cut(order, sizes)
        if parts:
            return tuple(
                BucketParameters(
                    group, bucket, sum(map(nbytes_of, part)), model.label,
                    tuple(each.name for each in part),
                )
                for bucket, part in enumerate(parts)
            )  # fmt: skip
    return ()


def _orders(model: ModelGroup) -> Iterator[list[WatchedTensor]]:
    """In which gradients may be ready: as they were on the first rank, then the model's last first.

    DDP has the first rank decide for all.
    """
    watched = model.info.parameters
    looks = model.facts[model.ranks[0]].gradient_times
    first = min((sync for number, sync in looks if number == model.number), default=None)
    if first is not None:
        places = looks[model.number, first].places
        yield [watched[place] for place in places if place < len(watched)]
    yield [each for each in reversed(watched) if each.reduced]


def _cut(order: Sequence[WatchedTensor], sizes: Sizes) -> list[list[WatchedTensor]]:
    """The parameters of each bucket; nothing where the bytes do not come out even."""
    parts: list[list[WatchedTensor]] = []
    filling: list[WatchedTensor] = []
    filled = 0
    for each in order:
        filling.append(each)
        filled += nbytes_of(each)
        if filled in sizes.get(len(parts), ()):
            parts.append(filling)
            filling, filled = [], 0
    return [] if filling else parts
