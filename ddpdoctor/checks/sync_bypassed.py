"""DD508 sync-bypassed: the optimizer steps on gradients that were never reduced.

What it measures
    Optimizer steps on a wrapped model's gradients without a reduction since the last one, or with
    backwards after it that were not reduced;
    parameters with a gradient of which DDP's reducer was not told; and parameters of the optimizer
    that belong to no wrapped model, where their gradients differ between ranks.

Why it matters
    Nothing fails and the loss falls, but each rank trains on its own data alone, and what is
    saved is the model of one rank.

What to do
    Call the wrapped model, not `model.module`: only its forward prepares the reduction. Leave
    `no_sync` before the last forward of an accumulation. Wrap again what was moved or cast after
    it was wrapped. Wrap every part that is trained.

When it is wrong
    Gradients or parameters that the script reduces by itself are equal on all ranks, and then it is
    silent. A method that averages parameters only now and then (local SGD) looks like this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.modelcauses import changed, unreduced, unsynced
from ddpdoctor.analysis.replicas import Difference, ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.modelevents import Unsynced
from ddpdoctor.modelwording import difference_evidence, few
from ddpdoctor.wording import percent, rank_list


@trace_check("DD508", "sync-bypassed")
def sync_bypassed(run: Analysis) -> Iterator[Finding]:
    groups = [group for group in run.models if len(group.ranks) > 1]
    if not any(any(facts.optimizers for facts in group.facts.values()) for group in groups):
        raise NotEnoughData("no optimizer step on a wrapped model was seen on two ranks")
    for group in groups:
        steps, names = unsynced(group), unreduced(group)
        if not group.is_wrapped:
            if group.gradients is not None:
                yield _of_rest(group, group.gradients)
        elif steps and not _are_equal(group, steps):
            yield _of_steps(group, steps)
        elif names and not changed(group):
            yield _of_parameters(group, names)


def _are_equal(group: ModelGroup, steps: Mapping[int, Unsynced]) -> bool:
    """The gradients were compared between ranks and are the same: the script reduced them."""
    taken = [own.steps for own in steps.values() if own.gradients.tensors]
    return group.unsynced is None and len(set(taken)) < len(taken)


def _of_steps(group: ModelGroup, steps: Mapping[int, Unsynced]) -> Finding:
    bypassed = all(not own.forwards for own in steps.values())
    first = min(own.first_step for own in steps.values())
    worst = max(steps.values(), key=lambda own: own.steps / max(1, own.optimizer_steps))
    share = worst.steps / max(1, worst.optimizer_steps)
    partly = any(own.partly for own in steps.values())
    cause = (
        f"the forward of the wrapped {group.label} was not called for them"
        if bypassed
        else f"no_sync was on in {'the last of their forwards' if partly else 'their forward'}"
    )
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if group.unsynced is not None else Confidence.LIKELY,
        message=(
            f"{rank_list(sorted(steps))} made optimizer steps on gradients of {group.label} that "
            f"were {'reduced in part only' if partly else 'not reduced'}, from optimizer step "
            f"{first} on; {cause}"
        ),
        fix=(
            "Compute the loss from `model(...)`, not from `model.module(...)` or a method of it: "
            "only the wrapped model's forward prepares the reduction. Route methods through "
            "`forward`."
            if bypassed
            else "Leave `no_sync` before the last forward of an accumulation: what counts is "
            "whether it is on in the forward, not in the backward."
        ),
        culprits=tuple(sorted(steps)),
        evidence=(
            Evidence("optimizer steps without a reduction, at least", percent(share)),
            Evidence("forwards of the wrapped model in them", worst.forwards),
            *(difference_evidence(group.unsynced) if group.unsynced else ()),
        ),
        where=tuple(
            Location(rank, own.site.file, own.site.line, own.site.function)
            for rank, own in sorted(steps.items())
            if own.site is not None
        ),
    )


def _of_parameters(group: ModelGroup, names: Mapping[int, list[str]]) -> Finding:
    listed = list(dict.fromkeys(name for own in names.values() for name in own))
    reduced = [tensor for tensor in group.info.parameters if tensor.reduced]
    all_of_them = len(listed) == len(reduced)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if group.gradients is not None else Confidence.LIKELY,
        message=(
            f"{'all gradients' if all_of_them else 'gradients'} of {group.label} are not reduced "
            f"on {rank_list(sorted(names))} ({few(listed)}): DDP's hooks on these parameters are "
            "not called"
        ),
        fix=(
            "Wrap the model again after it was moved or cast (`.to`, `.half`, `.double`), or do "
            "that before wrapping: parameters that are remade have none of DDP's hooks."
        ),
        culprits=tuple(sorted(names)),
        evidence=(
            Evidence("parameters that are not reduced", f"{len(listed)} of {len(reduced)}"),
            *(difference_evidence(group.gradients) if group.gradients else ()),
        ),
    )


def _of_rest(group: ModelGroup, differ: Difference) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=(
            f"{group.info.parameter_count} parameters of the optimizer belong to no DDP model, and "
            f"their gradients differ between {rank_list(group.ranks)}: each rank trains its own"
        ),
        fix=(
            "Wrap the module that holds them, too, or make it part of the wrapped model; then call "
            "it by the wrapped model's forward."
        ),
        culprits=group.ranks,
        evidence=(
            Evidence("their shapes", few([t.shape or "one number" for t in group.info.parameters])),
            *difference_evidence(differ),
        ),
    )
