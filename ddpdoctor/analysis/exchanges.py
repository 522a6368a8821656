"""The script's own sums over ranks, put together from what each rank gave them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ddpdoctor.events import Site
from ddpdoctor.findings import Location
from ddpdoctor.modelevents import Summed
from ddpdoctor.tracefile import Run

EXACT: Final = 0.002  # of a factor; float16 gradients keep three digits
LEAST_LOOKS: Final = 3
SETTLED: Final = 4  # calls from which a total that is summed up again and again stands out
MOST_ADDED: Final = 0.05  # by a step, of a total that was summed before
MOST_UNLIKE: Final = 0.02  # of what a norm and a clipping make together, between looks
LEAST_CLIPPED: Final = 0.01  # of the gradients, to be called so
_POWERS: Final = (0.5, 1.0)  # a norm is summed by its square, or as it is


@dataclass(frozen=True)
class Sum:
    """One call, with what every rank of the group gave it."""

    call: int
    again: bool
    given: dict[int, Summed]

    @property
    def size(self) -> int:
        return min(len(own.values) for own in self.given.values())

    def value(self, place: int) -> float | None:
        """The sum of what the ranks gave."""
        values = [own.values[place] for own in self.given.values()]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None


@dataclass(frozen=True)
class SumsOfLine:
    """The calls of one line that were looked at on all ranks, in their order."""

    site: Site | None
    ranks: tuple[int, ...]
    sums: tuple[Sum, ...]

    @property
    def where(self) -> tuple[Location, ...]:
        if self.site is None:
            return ()
        return tuple(
            Location(rank, self.site.file, self.site.line, self.site.function)
            for rank in self.ranks
        )


def sums_of_lines(run: Run) -> list[SumsOfLine]:
    members = {group.name: group.ranks for trace in run.ranks for group in trace.groups}
    calls: dict[tuple[str, int], dict[int, Summed]] = {}
    for trace in run.ranks:
        for own in trace.model.summed:
            calls.setdefault((own.group, own.seq), {})[trace.info.rank] = own
    lines: dict[tuple[Site | None, tuple[int, ...]], list[Sum]] = {}
    for (name, _), given in sorted(calls.items()):
        ranks = members.get(name, ())
        first = given[min(given)]
        alike = {(own.site, own.again, len(own.values)) for own in given.values()}
        if len(ranks) > 1 and set(given) == set(ranks) and len(alike) == 1:
            lines.setdefault((first.site, tuple(ranks)), []).append(
                Sum(first.call, first.again, given)
            )
    return [
        SumsOfLine(site, ranks, tuple(sorted(own, key=lambda one: one.call)))
        for (site, ranks), own in lines.items()
    ]


@dataclass(frozen=True)
class Regrown:
    """A total that is given to a sum again with the last sum still in it."""

    line: SumsOfLine
    looks: int
    value: float  # the largest that was seen


def regrown(lines: Iterable[SumsOfLine]) -> Iterator[Regrown]:
    for line in lines:
        pairs = [
            (before, after)
            for before, after in zip(line.sums, line.sums[1:], strict=False)
            if after.again and after.call > before.call >= SETTLED and not before.again
        ]
        for place in range(min((sum_.size for pair in pairs for sum_ in pair), default=0)):
            values = [value for pair in pairs if (value := _kept(*pair, place)) is not None]
            known = sum(before.value(place) is not None for before, _ in pairs)
            if len(values) >= LEAST_LOOKS and len(values) == known:
                yield Regrown(line, len(values), max(values))
                break


def _kept(before: Sum, after: Sum, place: int) -> float | None:
    """What the call before left there, where every rank gives it on with little added."""
    left = before.value(place)
    if left is None or left <= 0:
        return None
    for own in after.given.values():
        value = own.values[place]
        if value is None or not -1e-6 <= value / left - 1 <= MOST_ADDED:
            return None
    return left


@dataclass(frozen=True)
class SummedNorm:
    """A number, equal on all ranks, whose sum over them decides how far gradients are clipped."""

    line: SumsOfLine
    model: int
    looks: int
    value: float
    ratio: float  # of the gradients, at the last look


def summed_norms(lines: Iterable[SumsOfLine]) -> Iterator[SummedNorm]:
    for line in lines:
        models = {own.model for sum_ in line.sums for own in sum_.given.values()}
        for model in sorted(number for number in models if number is not None):
            clips = [clip for sum_ in line.sums if (clip := _clip(sum_, model)) is not None]
            if len(clips) >= LEAST_LOOKS and any(_is_constant(clips, power) for power in _POWERS):
                yield SummedNorm(line, model, len(clips), *clips[-1])


def _clip(sum_: Sum, model: int) -> tuple[float, float] | None:
    """A number that all ranks gave alike and that is no count, and what gradients shrank by."""
    given = list(sum_.given.values())
    if sum_.size != 1 or any(own.model != model for own in given):
        return None
    value = given[0].values[0]
    if value is None or value <= 0 or value == int(value):
        return None
    ratios = [ratio for own in given for ratio in own.ratios]
    alike = bool(ratios) and max(ratios) - min(ratios) <= EXACT * max(ratios)
    same = all(own.values[0] == value and own.ratios for own in given)
    if not same or not alike or not 0 < ratios[0] < 1 - LEAST_CLIPPED:
        return None
    return value, ratios[0]


def _is_constant(clips: Sequence[tuple[float, float]], power: float) -> bool:
    """Clipping makes the norm a certain one: the norm times the ratio is that at each look."""
    products = [float(ratio * value**power) for value, ratio in clips]
    return max(products) - min(products) <= MOST_UNLIKE * max(products)
