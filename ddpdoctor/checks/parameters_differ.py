"""DD501 parameters-differ: ranks train different models although their gradients are the same.

What it measures
    Checksums of a few elements of the parameters on every rank, at the end of the same backward: of
    the first reductions those whose number is a power of two, later every 64th and rarer.

Why it matters
    DDP sends the parameters once, when the model is wrapped, and then relies on equal steps. Ranks
    that differ stay apart for good: each averages gradients of another model, and what is saved on
    rank 0 is not what was trained.

What to do
    Load weights before the model is wrapped, or on all ranks. Skip an optimizer step on all ranks
    or on none: reduce the flag that decides it. Change parameters on all ranks alike.

When it is wrong
    What another check explains is left to it: settings that differ (DD405), gradients that do
    (DD502) or were not reduced (DD508), steps that were mixed (DD506). Ranks on processors of
    different kinds may differ in the last digit: that is a warning. Equal checksums of some
    elements do not prove that all are equal. Tensors on a GPU are not read.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.modelcauses import Ahead, ahead, cause_of
from ddpdoctor.analysis.replicas import Compared, Difference, ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.modelwording import compared_groups, difference_evidence, names_of, said_elsewhere
from ddpdoctor.wording import rank_list


@trace_check("DD501", "parameters-differ")
def parameters_differ(run: Analysis) -> Iterator[Finding]:
    explained, found = [], False
    for group in compared_groups(run):
        differ = group.parameters
        if differ is None or not group.is_wrapped:
            continue
        cause = cause_of(group, Compared.PARAMETERS)
        if cause is None:
            found = True
            yield _finding(group, differ)
        else:
            explained.append(cause)
    if explained and not found:
        raise NotEnoughData(said_elsewhere("the parameters differ", explained))


def _finding(group: ModelGroup, differ: Difference) -> Finding:
    steps = ahead(group, "optimizer_steps")
    rounding = differ.is_rounding
    since = f"from step {group.step_at(differ.sync)} on"
    if differ.equal_at is None:
        since = "since they were first looked at"
    return Finding(
        severity=Severity.WARNING if rounding else Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=(
            f"the parameters of {group.label} differ between ranks {since} ({names_of(differ)}), "
            f"although their gradients are the same; {_because(differ, steps)}"
        ),
        fix=_fix(differ, steps),
        culprits=steps.most if steps else differ.odd,
        steps=((differ.sync - 1, max(differ.sync, differ.last_sync) - 1),),
        evidence=(*difference_evidence(differ), *_steps_evidence(steps)),
    )


def _because(differ: Difference, steps: Ahead | None) -> str:
    if steps is not None:
        return f"{rank_list(steps.most)} made more optimizer steps by then"
    if differ.is_rounding:
        return "they differ by rounding"
    if differ.equal_at is None:
        return "so they were changed on some ranks after the model was wrapped"
    return "so they were changed otherwise than by a step that all ranks make"


def _fix(differ: Difference, steps: Ahead | None) -> str:
    if steps is not None:
        return (
            "Decide on all ranks together whether to step: all-reduce the flag (a loss that is not "
            "finite, a full memory) before the `if`, or step always."
        )
    if differ.is_rounding:
        return "Use processors of one kind, or accept that the ranks drift apart slowly."
    if differ.equal_at is None:
        return (
            "Load the checkpoint before wrapping the model, or on every rank; DDP sends rank 0's "
            "parameters once, when the model is wrapped."
        )
    return (
        "Look for what changes parameters on some ranks alone between these steps: loading, "
        "pruning, clamping, a moving average that is copied back, an optimizer state that only one "
        "rank restored."
    )


def _steps_evidence(steps: Ahead | None) -> Iterator[Evidence]:
    if steps is not None:
        said = ", ".join(f"{count} on rank {rank}" for rank, count in steps.counts.items())
        yield Evidence(f"optimizer steps before reduction {steps.sync}", said)
