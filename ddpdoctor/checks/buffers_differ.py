"""DD504 buffers-differ: ranks evaluate with buffers of their own, such as BatchNorm's statistics.

What it measures
    Checksums of the buffers when a model evaluates (its forward in `eval()` mode, or `eval()` of it
    or of `model.module` where no such forward follows), and during training where DDP was told not
    to send them (`broadcast_buffers=False`).

Why it matters
    Running statistics are those of each rank's own batches. DDP sends rank 0's before a forward of
    the wrapped model, so an evaluation through `model.module`, or without broadcasting, gives
    another score on each rank, and rank 0 saves statistics of its part of the data.

What to do
    Evaluate through the wrapped model, average the running statistics over the ranks before
    evaluating and saving, or use SyncBatchNorm.

When it is wrong
    Between forwards the statistics differ in every healthy run; they are not compared there. Where
    every rank calls `eval()` and rank 0 alone evaluates, the difference shows in what is saved at
    most. Saving is not seen, nor is `train(False)` on `model.module`. Where the parameters
    themselves differ, that is the finding (DD501, DD502, DD508).
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.replicas import Difference, ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Finding, Severity
from ddpdoctor.modelwording import compared_groups, difference_evidence, names_of


@trace_check("DD504", "buffers-differ")
def buffers_differ(run: Analysis) -> Iterator[Finding]:
    groups = [group for group in compared_groups(run) if group.is_wrapped]
    if not any(_evaluated_together(group) or not _broadcasts(group) for group in groups):
        raise NotEnoughData("no evaluation with buffers was seen on two ranks in the same step")
    reasons, found = [], False
    for group in groups:
        differ = group.evaluation or group.buffers
        if differ is None:
            continue
        if group.parameters is not None:
            reasons.append("the buffers differ as the parameters do; see DD501, DD502 and DD508")
        else:
            found = True
            yield _finding(group, differ)
    if reasons and not found:
        raise NotEnoughData(reasons[0])


def _broadcasts(group: ModelGroup) -> bool:
    has_buffers = group.info.buffer_count > 0
    return not has_buffers or group.info.arguments.get("broadcast_buffers") != "False"


def _evaluations(group: ModelGroup) -> list[tuple[int, bool]]:
    """Reduction and kind of each evaluation."""
    return [
        (sync, evaluation.wrapped)
        for facts in group.facts.values()
        for (model, sync), evaluation in facts.evaluations.items()
        if model == group.number
    ]


def _evaluated_together(group: ModelGroup) -> bool:
    syncs = [sync for sync, _ in _evaluations(group)]
    return len(set(syncs)) < len(syncs)


def _finding(group: ModelGroup, differ: Difference) -> Finding:
    at_evaluation = group.evaluation is not None
    wrapped = at_evaluation and all(kind for sync, kind in _evaluations(group)
                                    if sync == differ.sync)  # fmt: skip
    step = group.step_at(differ.sync)
    when = f"when it was evaluated after step {step}" if at_evaluation else f"from step {step} on"
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if wrapped else Confidence.LIKELY,
        message=(
            f"the buffers of {group.label} differ between ranks {when} ({names_of(differ)}); "
            + _because(group, wrapped=wrapped)
        ),
        fix=(
            "Evaluate through the wrapped model, or average the running statistics over the ranks "
            "before evaluating and saving; SyncBatchNorm keeps them equal."
        ),
        culprits=differ.odd,
        steps=((differ.sync - 1, max(differ.sync, differ.last_sync) - 1),),
        evidence=tuple(difference_evidence(differ)),
    )


def _because(group: ModelGroup, *, wrapped: bool) -> str:
    if not _broadcasts(group):
        return "it was wrapped with broadcast_buffers=False"
    if wrapped:
        return "although they are sent before each forward"
    return "the wrapped model's forward, which sends rank 0's, was not used"
