"""What a value that the loss averages over weighs on each rank, as the losses' graphs tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.modelevents import Loss, LossTerm


@dataclass(frozen=True)
class Weights:
    """One term of the loss in one reduction: each value's weight, by rank."""

    sync: int
    weights: dict[int, float]
    averaged: dict[int, float]  # values that the rank averages over; 1 where it only sums
    whole: bool  # what is divided by is all there is: below a plain sum there may be another mean

    @property
    def ratio(self) -> float:
        return max(self.weights.values()) / min(self.weights.values())


def losses_of(group: ModelGroup, rank: int) -> list[Loss]:
    """Those that were looked at, in the order of reductions."""
    own = group.facts[rank].losses.items()
    return [loss for (number, _), loss in sorted(own) if number == group.number]


def weights(group: ModelGroup) -> list[Weights]:
    """At each reduction of which the loss is known of all ranks, its most uneven term."""
    by_rank = {rank: {loss.sync: loss for loss in losses_of(group, rank)} for rank in group.ranks}
    if len(by_rank) < 2:
        return []
    common = sorted(set.intersection(*(set(own) for own in by_rank.values())))
    found = []
    for sync in common:
        terms = list(_terms_together({rank: own[sync] for rank, own in by_rank.items()}))
        if terms:
            found.append(max(terms, key=lambda term: term.ratio))
    return found


def _terms_together(losses: dict[int, Loss]) -> Iterator[Weights]:
    """None where the losses are not made alike, or a term tells nothing on one rank."""
    shapes = {tuple(term.name for term in loss.terms) for loss in losses.values()}
    if len(shapes) != 1:
        return
    for place in range(len(next(iter(shapes)))):
        terms = {rank: loss.terms[place] for rank, loss in losses.items()}
        own = {rank: _weight(term) for rank, term in terms.items()}
        known = {rank: weight for rank, weight in own.items() if weight}
        if len(known) == len(terms):
            divided = {rank: term.divided_by or 1.0 for rank, term in terms.items()}
            whole = not any(term.name.startswith("Sum") for term in terms.values())
            yield Weights(losses[min(losses)].sync, known, divided, whole)


def _weight(term: LossTerm) -> float:
    """0 where it is not known, or makes no sense as a number."""
    if not term.divided_by:
        return 0.0
    weight = abs(prod(term.factors)) / term.divided_by
    return weight if 1e-200 < weight < 1e200 else 0.0
