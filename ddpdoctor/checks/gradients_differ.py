"""DD502 gradients-differ: gradients were reduced, and yet they are not the same on all ranks.

What it measures
    Checksums of a few elements of the gradients on every rank, after the same reduction.

Why it matters
    After DDP's reduction all ranks have the same gradient. Where they do not, a part of it was
    added after the reduction or lost, and the ranks drift apart with every step.

What to do
    Use parameters only within `forward`, and change no gradient in a hook on one rank alone. A
    communication hook must return the same on all ranks. With activation checkpointing use
    `use_reentrant=False`.

When it is wrong
    A communication hook may leave ranks apart on purpose (post-local SGD); such a model is not
    judged. Where no reduction ran it is DD508, and where backwards ran within it DD509. Gradients
    that are not finite are left to DD505. Tensors on a GPU are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.modelcauses import COMMUNICATION_HOOK, cause_of
from ddpdoctor.analysis.replicas import Compared, Difference, ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.modelwording import compared_groups, difference_evidence, names_of, said_elsewhere

APART_ON_PURPOSE: Final = ("post_localSGD", "local_sgd")


@trace_check("DD502", "gradients-differ")
def gradients_differ(run: Analysis) -> Iterator[Finding]:
    reasons, found = [], False
    for group in compared_groups(run):
        differ = group.gradients
        if differ is None or not group.is_wrapped:
            continue
        cause = cause_of(group, Compared.GRADIENTS)
        if cause is not None:
            reasons.append(said_elsewhere("the gradients differ", [cause]))
        elif any(hook in _hook(group) for hook in APART_ON_PURPOSE):
            reasons.append(f"the communication hook {_hook(group)} leaves ranks apart on purpose")
        else:
            found = True
            yield _finding(group, differ)
    if reasons and not found:
        raise NotEnoughData("; ".join(dict.fromkeys(reasons)))


def _hook(group: ModelGroup) -> str:
    return group.info.arguments.get(COMMUNICATION_HOOK, "")


def _finding(group: ModelGroup, differ: Difference) -> Finding:
    hook = _hook(group)
    return Finding(
        severity=Severity.WARNING if differ.is_rounding else Severity.ERROR,
        confidence=Confidence.LIKELY if hook else Confidence.CERTAIN,
        message=(
            f"the gradients of {group.label} differ between ranks after the reduction, from step "
            f"{group.step_at(differ.sync)} on ({names_of(differ)})"
        ),
        fix=_fix(differ, hook),
        culprits=differ.odd,
        steps=((differ.sync - 1, max(differ.sync, differ.last_sync) - 1),),
        evidence=(
            *difference_evidence(differ),
            *([Evidence("communication hook", hook)] if hook else []),
            *_consequence(group),
        ),
    )


def _fix(differ: Difference, hook: str) -> str:
    if hook:
        return (
            f"Train without the communication hook {hook} to see whether it is the cause; it must "
            "return the same tensor on all ranks."
        )
    return (
        f"Look at how {differ.names[0] if differ.names else 'the parameter'} is used: with "
        "activation checkpointing pass use_reentrant=False, use the layer only within `forward`, "
        "and change no gradient in a hook on one rank alone."
    )


def _consequence(group: ModelGroup) -> Iterator[Evidence]:
    if group.parameters is not None:
        yield Evidence(
            "parameters differ between ranks",
            f"from step {group.step_at(group.parameters.sync)} on",
        )
