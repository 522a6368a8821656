"""What explains that ranks learn apart: each cause once, so that its consequences are no findings.

The order is that of the functions' use in `cause_of`: a reduction that did not run explains that
gradients differ, and gradients that differ explain that parameters do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ddpdoctor.analysis.replicas import Compared, ModelGroup, minority
from ddpdoctor.modelevents import FailureKind, ModelChange, OptimizerInfo, Unsynced

OFTEN: Final = 0.2  # of reductions; what happens less often is an accident, and more a habit
LEAST_LOOKS: Final = 2  # at which a reduction is missing: times of two backwards may be equal once
COMMUNICATION_HOOK: Final = "communication hook"  # among the arguments of DDP
MAY_DIFFER: Final = frozenset({"device_ids"})


@dataclass(frozen=True)
class Setting:
    """A setting that is not the same on all ranks."""

    kind: str  # "DDP argument", "optimizer", "model"
    name: str
    values: Mapping[int, str]

    @property
    def odd(self) -> tuple[int, ...]:
        return minority(self.values)


def settings_that_differ(group: ModelGroup) -> Iterator[Setting]:
    """DDP's arguments, the optimizers and their learning rates, and what the model is made of."""
    if not group.is_wrapped:
        return
    yield from _structure(group)
    arguments = {rank: dict(info.arguments) for rank, info in group.infos.items()}
    yield from _named("DDP argument", arguments)
    optimizers: dict[int, dict[int, OptimizerInfo]] = {}
    for rank, facts in group.facts.items():
        for number, optimizer in facts.optimizers.items():
            if group.number in optimizer.models:
                optimizers.setdefault(number, {})[rank] = optimizer
    for own in optimizers.values():
        if len(own) < 2:
            continue
        yield from _named("optimizer", {rank: {"class": o.name} for rank, o in own.items()})
        if len({o.name for o in own.values()}) == 1:
            yield from _named("optimizer", {rank: dict(o.settings) for rank, o in own.items()})
    yield from _rates(group)


def _structure(group: ModelGroup) -> Iterator[Setting]:
    if group.same_structure:
        return
    for what in ("parameters", "buffers"):
        rows = {
            rank: [f"{t.name} ({t.shape}, {t.dtype}{'' if t.trainable else ', frozen'})"
                   for t in getattr(info, what)]
            for rank, info in group.infos.items()
        }  # fmt: skip
        for place in range(max(len(own) for own in rows.values())):
            values = {r: own[place] if place < len(own) else "(none)" for r, own in rows.items()}
            if len(set(values.values())) > 1:
                yield Setting("model", f"{what[:-1]} {place}", values)
                return
    values = {
        rank: f"{info.parameter_count} parameters and {info.buffer_count} buffers, "
        f"digest {info.parameter_digest ^ info.buffer_digest:x}"
        for rank, info in group.infos.items()
    }
    yield Setting("model", "names, shapes or types of tensors", values)


def _named(kind: str, own: Mapping[int, Mapping[str, str]]) -> Iterator[Setting]:
    for name in sorted({name for settings in own.values() for name in settings} - MAY_DIFFER):
        values = {rank: settings.get(name, "(not set)") for rank, settings in own.items()}
        if len(set(values.values())) > 1:
            yield Setting(kind, name, values)


def _rates(group: ModelGroup) -> Iterator[Setting]:
    """Learning rates that differ later although the settings were equal at the first step."""
    samples = {rank: group.samples(rank) for rank in group.ranks}
    common = set.intersection(*(set(own) for own in samples.values())) if samples else set()
    for sync in sorted(common):
        rates = {rank: own[sync].rates for rank, own in samples.items()}
        steps = {own[sync].optimizer_steps for own in samples.values()}
        if len(set(rates.values())) > 1 and len(steps) == 1 and all(rates.values()):
            values = {rank: ", ".join(f"{r:g}" for r in own) for rank, own in rates.items()}
            if len(set(values.values())) > 1:
                yield Setting("optimizer", f"lr at step {group.step_at(sync)}", values)
                return


def changed(group: ModelGroup) -> dict[int, list[ModelChange]]:
    """Parameters that are not what they were when the model was wrapped, by rank."""
    found = {
        rank: [change for change in facts.changes if change.model == group.number]
        for rank, facts in group.facts.items()
    }
    return {rank: changes for rank, changes in found.items() if changes}


def misused(group: ModelGroup) -> bool:
    """Whether an error of the reducer or a change of the model is known."""
    return bool(changed(group)) or bool(_failures(group) - {FailureKind.UNUSED})


def _failures(group: ModelGroup) -> set[FailureKind]:
    """Kinds of the errors that are known to be of this model."""
    failures = (failure for facts in group.facts.values() for failure in facts.failures)
    return {failure.kind for failure in failures if failure.model == group.number}


def unsynced(group: ModelGroup) -> dict[int, Unsynced]:
    """Optimizer steps on gradients that were not reduced, by rank."""
    return {
        rank: facts.unsynced[group.number]
        for rank, facts in group.facts.items()
        if group.number in facts.unsynced
    }


def unreduced(group: ModelGroup) -> dict[int, list[str]]:
    """Parameters with a gradient that the reducer was not told of, by rank."""
    found = {}
    for rank in group.ranks:
        samples = group.samples(rank).values()
        counts = Counter(place for sample in samples for place in sample.unreduced)
        named = group.infos[rank].parameters
        names = [named[place].name for place, count in sorted(counts.items())
                 if count >= LEAST_LOOKS and place < len(named)]  # fmt: skip
        if names:
            found[rank] = names
    return found


def reduced_too_early(group: ModelGroup) -> bool:
    """Gradients differ after reductions within which other backwards ran.

    These add to gradients that DDP has taken for complete. With a communication hook the cause
    may be that.
    """
    differ = group.gradients
    if differ is None or COMMUNICATION_HOOK in group.info.arguments:
        return False
    looks = [group.samples(rank).get(differ.sync) for rank in group.ranks]
    return any(look is not None and look.nested > 1 for look in looks)


@dataclass(frozen=True)
class Ahead:
    """A counter that is ahead on some ranks at one reduction."""

    sync: int  # the first look at which they differ
    before: int  # the look before it; 0 where there is none
    counts: Mapping[int, int]
    share: float  # of the reductions in which the difference grew, at most
    last: Mapping[int, int]

    @property
    def most(self) -> tuple[int, ...]:
        top = max(self.counts.values())
        return tuple(rank for rank, count in self.counts.items() if count == top)

    @property
    def by(self) -> int:
        return max(self.last.values()) - min(self.last.values())


def ahead(group: ModelGroup, counter: str) -> Ahead | None:
    """Where ranks have counted differently at the same reduction."""
    samples = {rank: group.samples(rank) for rank in group.ranks}
    if len(samples) < 2:
        return None
    common = sorted(set.intersection(*(set(own) for own in samples.values())))
    counts = [{rank: int(getattr(own[sync], counter)) for rank, own in samples.items()}
              for sync in common]  # fmt: skip
    differ = [index for index, own in enumerate(counts) if len(set(own.values())) > 1]
    if not differ:
        return None
    first, last = differ[0], counts[differ[-1]]
    gap = max(last.values()) - min(last.values())
    share = gap / max(1, common[differ[-1]])
    before = common[first - 1] if first else 0
    return Ahead(common[first], before, counts[first], share, last)


def mixed(group: ModelGroup) -> Ahead | None:
    """A rank that ran forwards without a backward: it reduces a later step with the others'."""
    found = ahead(group, "forwards")
    if found is None or found.share > OFTEN or not group.is_wrapped:
        return None
    return found


def cause_of(group: ModelGroup, part: Compared) -> str | None:
    """The code of the check that explains why this part of the model differs between ranks."""
    causes = [
        ("DD503", FailureKind.UNUSED in _failures(group)),
        ("DD509", misused(group) or reduced_too_early(group)),
        ("DD405", not group.same_structure),
        ("DD508", bool(not group.is_wrapped or unsynced(group) or unreduced(group))),
    ]
    if part is not Compared.GRADIENTS:
        settings = (setting.kind for setting in settings_that_differ(group))
        causes += [
            ("DD502", group.gradients is not None),
            ("DD405", any(kind != "DDP argument" for kind in settings)),
            ("DD506", mixed(group) is not None),
        ]
    return next((code for code, holds in causes if holds), None)
