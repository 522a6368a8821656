"""One model on all ranks that reduce it together: where its numbers differ between them.

Only a few elements of a few tensors were looked at, so equal looks do not prove equality; looks
that differ do prove a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddpdoctor.modelevents import Digests, ModelFacts, ModelInfo, ModelSample, WatchedTensor
from ddpdoctor.tracefile import RankTrace, Run

ROUNDING: Final = 1e-6  # of a magnitude: float32 keeps 7 digits, kernels differ in the last
_NAMES_KEPT: Final = 64


class Compared(StrEnum):
    """What of a model was compared."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    BUFFERS = "buffers"


@dataclass(frozen=True)
class Difference:
    """The first look at which ranks differ, and how it goes on.

    `odd` are the ranks that differ from what more than half of them have; all, where there is
    no such majority. `relative` is the largest difference of magnitudes, 0 where only the values
    differ.
    """

    part: Compared
    sync: int
    equal_at: int | None  # the last look before it at which they were equal
    odd: tuple[int, ...]
    names: tuple[str, ...]
    count: int  # of tensors that differ there
    compared: int  # tensors
    relative: float
    looks: int  # at which they differ, of all
    all_looks: int
    last_sync: int
    last_relative: float

    @property
    def is_rounding(self) -> bool:
        return 0 < max(self.relative, self.last_relative) <= ROUNDING


@dataclass(frozen=True)
class ModelGroup:
    """One wrapped model on the ranks that reduce it together."""

    info: ModelInfo  # of the first of these ranks
    infos: Mapping[int, ModelInfo]  # by rank
    facts: Mapping[int, ModelFacts]
    same_structure: bool
    parameters: Difference | None
    gradients: Difference | None
    buffers: Difference | None
    evaluation: Difference | None  # of the buffers at evaluations
    unsynced: Difference | None  # of gradients in steps without a reduction
    looks: int  # reductions that were looked at on at least two ranks

    @property
    def number(self) -> int:
        return self.info.model

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.infos)

    @property
    def is_wrapped(self) -> bool:
        """Whether it is a DDP model, and not what an optimizer holds beside such models."""
        return bool(self.info.name)

    @property
    def label(self) -> str:
        """Its class, with its number where there may be several."""
        several = any(len(facts.models) > 1 for facts in self.facts.values())
        return f"{self.info.name} (model {self.number})" if several else self.info.name

    def step_at(self, sync: int) -> int:
        """The step in which the model had its `sync`-th reduction; about that where not known."""
        looks = (facts.samples.get((self.number, sync)) for facts in self.facts.values())
        return next((look.step for look in looks if look is not None), max(0, sync - 1))

    def samples(self, rank: int) -> dict[int, ModelSample]:
        return {
            sync: sample
            for (model, sync), sample in self.facts[rank].samples.items()
            if model == self.number
        }


def model_groups(run: Run) -> tuple[ModelGroup, ...]:
    """Every model that was recorded, with the ranks that share it."""
    members: dict[tuple[int, tuple[int, ...]], list[RankTrace]] = {}
    for trace in run.ranks:
        for number, info in trace.model.models.items():
            named = (group.ranks for group in trace.ddp_groups if group.name == info.group)
            members.setdefault((number, next(named, ())), []).append(trace)
    return tuple(_group(number, traces) for (number, _), traces in sorted(
        members.items(), key=lambda item: item[0]))  # fmt: skip


def _group(number: int, traces: Sequence[RankTrace]) -> ModelGroup:
    facts = {trace.info.rank: trace.model for trace in traces}
    infos = {rank: own.models[number] for rank, own in facts.items()}
    info = next(iter(infos.values()))
    samples = {
        rank: {sync: s for (model, sync), s in own.samples.items() if model == number}
        for rank, own in facts.items()
    }
    evaluations = {
        rank: {sync: s.buffers for (model, sync), s in own.evaluations.items() if model == number}
        for rank, own in facts.items()
    }
    unsynced = {
        rank: {own.unsynced[number].steps: own.unsynced[number].gradients}
        for rank, own in facts.items()
        if number in own.unsynced
    }

    def compare(part: Compared, looks: Mapping[int, Mapping[int, Digests]]) -> Difference | None:
        named = info.buffers if part is Compared.BUFFERS else info.parameters
        return _difference(part, looks, named) if same else None

    def of(part: Compared) -> dict[int, dict[int, Digests]]:
        return {
            rank: {sync: getattr(s, part.value) for sync, s in own.items()}
            for rank, own in samples.items()
        }

    same = len({(own.parameter_digest, own.buffer_digest) for own in infos.values()}) == 1
    return ModelGroup(
        info, infos, facts, same,
        compare(Compared.PARAMETERS, of(Compared.PARAMETERS)),
        compare(Compared.GRADIENTS, of(Compared.GRADIENTS)),
        compare(Compared.BUFFERS, of(Compared.BUFFERS)),
        compare(Compared.BUFFERS, evaluations),
        compare(Compared.GRADIENTS, unsynced),
        len(_common(samples)),
    )  # fmt: skip


def _common(looks: Mapping[int, Mapping[int, object]]) -> list[int]:
    """Reductions that at least two ranks looked at."""
    counts = Counter(sync for own in looks.values() for sync in own)
    return sorted(sync for sync, count in counts.items() if count > 1)


def _difference(
    part: Compared, looks: Mapping[int, Mapping[int, Digests]], named: Sequence[WatchedTensor]
) -> Difference | None:
    common = _common(looks)
    differing: list[tuple[int, dict[int, Digests], list[int]]] = []
    equal_at: int | None = None
    for sync in common:
        own = {rank: digests[sync] for rank, digests in looks.items() if sync in digests}
        places = _places_that_differ(own)
        if places:
            differing.append((sync, own, places))
        elif not differing:
            equal_at = sync
    if not differing:
        return None
    sync, own, places = differing[0]
    names = [named[place].name for place in places[:_NAMES_KEPT] if place < len(named)]
    return Difference(
        part,
        sync,
        equal_at,
        _odd(own, places),
        tuple(names),
        len(places),
        max(len(digests.tensors) for digests in own.values()),
        _relative(own, places),
        len(differing),
        len(common),
        differing[-1][0],
        _relative(*differing[-1][1:]),
    )


def _places_that_differ(own: Mapping[int, Digests]) -> list[int]:
    """Tensors whose digests are not the same on all ranks; those that are not finite are left out.

    A tensor that only some of the ranks could read is left out, too.
    """
    every = list(own.values())
    if all(digests == every[0] for digests in every[1:]):
        return []
    by_rank = [dict(zip(d.tensors, zip(d.digests, d.sizes, strict=True), strict=True))
               for d in every]  # fmt: skip
    common = set(by_rank[0]).intersection(*by_rank[1:])
    return sorted(
        place
        for place in common
        if all(values[place][1] is not None for values in by_rank)
        and len({values[place][0] for values in by_rank}) > 1
    )


def _odd(own: Mapping[int, Digests], places: Sequence[int]) -> tuple[int, ...]:
    wanted = set(places)
    values: dict[int, Hashable] = {
        rank: tuple(d for place, d in zip(digests.tensors, digests.digests, strict=True)
                    if place in wanted)
        for rank, digests in own.items()
    }  # fmt: skip
    return minority(values)


def minority(values: Mapping[int, Hashable]) -> tuple[int, ...]:
    """Ranks without the value that more than half of them have; all where there is none."""
    usual, count = Counter(values.values()).most_common(1)[0]
    if 2 * count <= len(values):
        return tuple(sorted(values))
    return tuple(sorted(rank for rank, value in values.items() if value != usual))


def _relative(own: Mapping[int, Digests], places: Sequence[int]) -> float:
    """The largest difference of magnitudes, as a share of the larger one."""
    worst = 0.0
    by_rank = [dict(zip(d.tensors, d.sizes, strict=True)) for d in own.values()]
    for place in places:
        sizes = [abs(size) for values in by_rank if (size := values[place]) is not None]
        if sizes and max(sizes) > 0:
            worst = max(worst, (max(sizes) - min(sizes)) / max(sizes))
    return worst
