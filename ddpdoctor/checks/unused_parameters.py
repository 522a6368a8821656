"""DD503 unused-parameters: parameters get no gradient, on all ranks or on some.

What it measures
    For the backwards that are looked at, which of the parameters that DDP reduces took no part, on
    each rank and by name; and the names in DDP's own error about them.

Why it matters
    DDP waits for every parameter it was given. With `find_unused_parameters=False` a parameter
    without a gradient ends the training at the next forward, or leaves the other ranks waiting.
    With True it works, at a cost in each step; where only some ranks used it, its gradient is
    averaged with the zeros of the others.

What to do
    Delete or freeze (`requires_grad_(False)`, before wrapping) what no loss needs. Where a batch
    decides what is used, use all of it on every rank: add `0 * branch(x).sum()` to the loss. Else
    wrap with `find_unused_parameters=True`.

When it is wrong
    Models that choose their branches by the batch (mixtures of experts, layer drop) use others on
    each rank by design; then the dilution is the point to look at. With `static_graph=True`, and
    for models of more than 20,000 parameters, nothing is measured but the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.modelevents import FailureKind, ModelFailure
from ddpdoctor.modelwording import few
from ddpdoctor.wording import percent, rank_list

SOME_STEPS: Final = 0.05  # of the looks; a parameter that is left out less often costs little
_FIND: Final = "find_unused_parameters"


@dataclass(frozen=True)
class _Unused:
    """Shares of looks in which parameters were not used, by name and rank."""

    shares: dict[str, dict[int, float]]
    looks: int

    def names(self, *, everywhere: bool) -> list[str]:
        """Never used on any rank; or used on some rank and left out on another, often enough."""
        if everywhere:
            return [name for name, own in self.shares.items() if min(own.values()) == 1]
        return [
            name
            for name, own in self.shares.items()
            if min(own.values()) < 1 and max(own.values()) - min(own.values()) >= SOME_STEPS
        ]


@trace_check("DD503", "unused-parameters")
def unused_parameters(run: Analysis) -> Iterator[Finding]:
    groups = [group for group in run.models if group.is_wrapped]
    looked = False
    for group in groups:
        unused = _unused(group)
        failed = {rank: failure for rank, facts in group.facts.items()
                  for failure in facts.failures if _is_of(failure, group)}  # fmt: skip
        looked = looked or bool(unused.looks or failed)
        if failed:
            yield _of_error(group, failed, unused)
            continue
        yield from _of_looks(group, unused)
    if not looked:
        raise NotEnoughData("which parameters took part in a backward was not measured")


def _is_of(failure: ModelFailure, group: ModelGroup) -> bool:
    return failure.kind is FailureKind.UNUSED and failure.model in (None, group.number)


def _unused(group: ModelGroup) -> _Unused:
    counts: dict[str, dict[int, float]] = {}
    looks = 0
    for rank in group.ranks:
        samples = [sample for sample in group.samples(rank).values() if sample.looked_at]
        looks = max(looks, len(samples))
        named = group.infos[rank].parameters
        for sample in samples:
            for place in sample.unused:
                if place < len(named):
                    own = counts.setdefault(named[place].name, dict.fromkeys(group.ranks, 0.0))
                    own[rank] += 1 / len(samples)
    rounded = {name: {r: round(s, 6) for r, s in own.items()} for name, own in counts.items()}
    return _Unused(rounded, looks)


def _of_error(group: ModelGroup, failed: dict[int, ModelFailure], unused: _Unused) -> Finding:
    names = list(dict.fromkeys(n for failure in failed.values() for n in failure.names))
    names = names or list(unused.shares)
    everywhere = set(failed) == set(group.ranks)
    who = "on any rank" if everywhere else f"on {rank_list(sorted(failed))}"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=f"{few(names)} of {group.label} got no gradient {who}, and DDP ended the training",
        fix=_fix_of_error(everywhere=everywhere),
        culprits=tuple(sorted(failed)),
        evidence=(Evidence("DDP's error", "expected to have finished reduction"),),
        where=tuple(
            Location(rank, failure.site.file, failure.site.line, failure.site.function)
            for rank, failure in sorted(failed.items())
            if failure.site is not None
        ),
    )


def _fix_of_error(*, everywhere: bool) -> str:
    if everywhere:
        return (
            "Delete them, or freeze them before the model is wrapped (`requires_grad_(False)`), "
            "or use them in the loss. Where that depends on the batch, wrap with "
            "find_unused_parameters=True."
        )
    return (
        "Use the same parameters on every rank: add `0 * branch(x).sum()` to the loss where a "
        "batch skips them, or wrap with find_unused_parameters=True, which averages with zeros."
    )


def _of_looks(group: ModelGroup, unused: _Unused) -> Iterator[Finding]:
    finds = group.info.arguments.get(_FIND) == "True"
    some = unused.names(everywhere=False)
    if some:
        yield _of_some(group, unused, some, finds=finds)
    never = unused.names(everywhere=True)
    if never:
        yield Finding(
            severity=Severity.INFO if finds else Severity.ERROR,
            confidence=Confidence.CERTAIN if unused.looks > 1 else Confidence.LIKELY,
            message=(
                f"{few(never)} of {group.label} never "
                f"{'get' if len(never) > 1 else 'gets'} a gradient on any rank"
            ),
            fix=(
                "Delete them, or freeze them before the model is wrapped "
                "(`requires_grad_(False)`); they are not trained"
                + (", and find_unused_parameters=True may then go." if finds else ".")
            ),
            evidence=(Evidence("backwards looked at", unused.looks),),
        )


def _of_some(group: ModelGroup, unused: _Unused, names: list[str], *, finds: bool) -> Finding:
    worst = max(names, key=lambda name: max(unused.shares[name].values()))
    shares = unused.shares[worst]
    culprits = tuple(r for name in names for r, s in unused.shares[name].items() if s > 0)
    said = ", ".join(f"{percent(share)} on rank {rank}" for rank, share in shares.items())
    return Finding(
        severity=Severity.WARNING if finds else Severity.ERROR,
        confidence=Confidence.CERTAIN if unused.looks > 1 else Confidence.LIKELY,
        message=(
            f"ranks use different parameters of {group.label}: {few(names)} got no gradient on "
            f"{rank_list(sorted(set(culprits)))} where other ranks had one"
        ),
        fix=(
            "Use the same parameters on every rank: add `0 * branch(x).sum()` to the loss where a "
            "batch skips them, or draw which layers to drop from a seed that the ranks share. "
            + (
                "As it is, their gradients are averaged with zeros."
                if finds
                else "As it is, the ranks wait for reductions that do not come; "
                "find_unused_parameters=True avoids that, and averages with zeros."
            )
        ),
        culprits=tuple(sorted(set(culprits))),
        evidence=(
            Evidence("backwards looked at", unused.looks),
            Evidence(f"looks in which {worst} was not used", said),
        ),
    )
