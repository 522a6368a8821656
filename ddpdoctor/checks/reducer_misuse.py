"""DD509 reducer-misuse: the model was changed after wrapping, or used as DDP's reducer cannot bear.

What it measures
    Errors of the reducer and of autograd that end the training: a parameter marked ready twice, a
    tensor changed in place, a graph that changed under `static_graph`. And parameters that are not
    what they were when the model was wrapped: replaced, frozen, unfrozen, of another type. And
    gradients that differ between ranks after backwards that ran within the model's backward.

Why it matters
    DDP knows the parameters that it was given when the model was wrapped. One that is new or begins
    to require a gradient later is trained by each rank alone, without a word. So is a layer that
    passes two reentrant checkpoints: its gradient is reduced after the first.

What to do
    Change the model first and wrap it then. With activation checkpointing use
    `use_reentrant=False`. Merge two forwards before one backward, or use
    `broadcast_buffers=False`. Change tensors out of place.

When it is wrong
    Parameters that are frozen after wrapping are no fault with `find_unused_parameters=True`. Of
    several models the error does not tell which. Changes are seen at the steps that are looked
    at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.modelcauses import changed, misused, reduced_too_early
from ddpdoctor.analysis.replicas import Difference, ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.modelevents import ChangeKind, FailureKind, ModelChange, ModelFailure
from ddpdoctor.modelwording import difference_evidence, few, names_of
from ddpdoctor.wording import rank_list

_FAILED: Final = {
    FailureKind.READY_TWICE: "{names} was marked ready twice in one backward",
    FailureKind.IN_PLACE: "a tensor that backward needed had been changed in place",
    FailureKind.GRAPH_CHANGED: (
        "{names} got no gradient although earlier steps used it, which static_graph=True forbids"
    ),
}
_FIXES: Final = {
    FailureKind.READY_TWICE: (
        "Pass use_reentrant=False to activation checkpointing, use the parameter only within "
        "`forward`, and pass a shared layer once a backward; static_graph=True helps where the "
        "graph never changes."
    ),
    FailureKind.IN_PLACE: (
        "Change no buffer or activation in place between forward and backward. Two forwards before "
        "one backward send the buffers again: merge them, or wrap with broadcast_buffers=False."
    ),
    FailureKind.GRAPH_CHANGED: (
        "Wrap without static_graph=True, or use the same parameters in every step."
    ),
}
_CHANGED: Final = {
    ChangeKind.REPLACED: "replaced by new ones",
    ChangeKind.UNFROZEN: "set to require a gradient",
    ChangeKind.FROZEN: "frozen",
    ChangeKind.CAST: "cast to another type",
}


@trace_check("DD509", "reducer-misuse")
def reducer_misuse(run: Analysis) -> Iterator[Finding]:
    groups = [group for group in run.models if group.is_wrapped]
    if not groups:
        raise NotEnoughData("no model was recorded")
    told: set[FailureKind] = set()
    for group in groups:
        failed: dict[FailureKind, dict[int, ModelFailure]] = {}
        for rank, facts in group.facts.items():
            for failure in facts.failures:
                if failure.kind in _FAILED and failure.model in (None, group.number):
                    failed.setdefault(failure.kind, {})[rank] = failure
        for kind, by_rank in failed.items():
            if kind not in told:
                told.add(kind)
                yield _of_failure(group, kind, by_rank)
        yield from _of_changes(group, changed(group))
        differ = group.gradients
        if differ is not None and not misused(group) and reduced_too_early(group):
            yield _of_nested(group, differ)


def _of_failure(
    group: ModelGroup, kind: FailureKind, failed: Mapping[int, ModelFailure]
) -> Finding:
    names = list(dict.fromkeys(name for own in failed.values() for name in own.names))
    said = _FAILED[kind].format(names=few(names) or "a parameter")
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=f"the training of {group.label} ended on {rank_list(sorted(failed))}: {said}",
        fix=_FIXES[kind],
        culprits=tuple(sorted(failed)),
        evidence=(Evidence("reductions before", max(own.sync for own in failed.values())),),
        where=tuple(
            Location(rank, own.site.file, own.site.line, own.site.function)
            for rank, own in sorted(failed.items())
            if own.site is not None
        ),
    )


def _of_nested(group: ModelGroup, differ: Difference) -> Finding:
    looks = [group.samples(rank).get(differ.sync) for rank in group.ranks]
    nested = max(look.nested for look in looks if look is not None)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"gradients of {group.label} differ between ranks after the reduction, from step "
            f"{group.step_at(differ.sync)} on ({names_of(differ)}), and backwards ran within its "
            "backward, as reentrant checkpointing has it: a layer that passes two of them is "
            "reduced before its gradient is complete"
        ),
        fix=(
            "Pass use_reentrant=False to activation checkpointing; else let a shared layer pass "
            "one checkpoint alone, or wrap with static_graph=True where the graph never changes."
        ),
        culprits=differ.odd,
        steps=((differ.sync - 1, max(differ.sync, differ.last_sync) - 1),),
        evidence=(
            Evidence("backwards within one backward", nested),
            *difference_evidence(differ),
            *_consequence(group),
        ),
    )


def _of_changes(group: ModelGroup, changes: Mapping[int, list[ModelChange]]) -> Iterator[Finding]:
    for kind, said in _CHANGED.items():
        own = {r: [c for c in listed if c.kind is kind] for r, listed in changes.items()}
        own = {rank: listed for rank, listed in own.items() if listed}
        if not own:
            continue
        names = list(dict.fromkeys(n for listed in own.values() for c in listed for n in c.names))
        count = max(sum(c.count for c in listed) for listed in own.values())
        first = min(change.sync for listed in own.values() for change in listed)
        yield Finding(
            severity=_severity(group, kind, own),
            confidence=Confidence.CERTAIN,
            message=(
                f"parameters of {group.label} were {said} after it was wrapped, on "
                f"{rank_list(sorted(own))}: {few(names, count)}"
            ),
            fix=_fix_of_change(kind),
            culprits=tuple(sorted(own)),
            evidence=(
                Evidence("first seen at step", group.step_at(first)),
                *_consequence(group),
            ),
        )


def _severity(group: ModelGroup, kind: ChangeKind, own: Mapping[int, object]) -> Severity:
    searches = group.info.arguments.get("find_unused_parameters") == "True"
    if kind is ChangeKind.FROZEN and len(own) == len(group.ranks):
        return Severity.INFO if searches else Severity.WARNING
    return Severity.ERROR


def _fix_of_change(kind: ChangeKind) -> str:
    if kind is ChangeKind.FROZEN:
        return "Freeze parameters before wrapping; DDP waits for the gradient of each it was given."
    return (
        "Change the model first and wrap it then, or wrap it again: DDP reduces the parameters "
        "that it was given, and each rank trains the others alone."
    )


def _consequence(group: ModelGroup) -> Iterator[Evidence]:
    for differ in (group.gradients, group.parameters):
        if differ is not None:
            yield Evidence(
                f"{differ.part.value} differ between ranks",
                f"from step {group.step_at(differ.sync)} on ({few(differ.names, differ.count)})",
            )
