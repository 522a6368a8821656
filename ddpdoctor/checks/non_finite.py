"""DD505 non-finite: a gradient became NaN or infinite.

What it measures
    In every backward, whether the gradient of the rank's own loss by the model's output is finite
    (a large one is sampled); at the reductions that are looked at, and in each after a first
    hit, whether reduced gradients are. With the first hits the parameters are named.

Why it matters
    The all-reduce carries a NaN of one rank into the gradients of all. A guard that looks at rank
    0's loss does not see it, and from the next optimizer step on every weight is NaN.

What to do
    Look at the batch and the loss of the rank that is named, in that step. Decide to skip a step on
    all ranks together: all-reduce the flag first.

When it is wrong
    A gradient scaler meets infinities while it looks for its scale and skips those steps; steps
    that were skipped and followed by finite ones are no finding. Something that arises within
    the backward and does not reach the weights may pass unseen. After 256 steps each fourth is
    looked at, so that it may have begun up to three steps earlier. Tensors on a GPU are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.modelevents import NonFinite
from ddpdoctor.modelwording import few
from ddpdoctor.wording import rank_list

SKIPPED_ON_END: Final = 20  # skipped steps at the end of a run; a scaler halves past float32 in 16


@trace_check("DD505", "non-finite")
def non_finite(run: Analysis) -> Iterator[Finding]:
    groups = [group for group in run.models if group.is_wrapped]
    if not any(group.info.measured and group.samples(r) for group in groups for r in group.ranks):
        raise NotEnoughData("no gradient was looked at")
    for group in groups:
        by_sync: dict[int, dict[int, NonFinite]] = {}
        for rank, facts in group.facts.items():
            for seen in facts.non_finite:
                if seen.model == group.number:
                    by_sync.setdefault(seen.sync, {})[rank] = seen
        if by_sync and not _was_handled(group, by_sync):
            yield _finding(group, by_sync)


def _was_handled(group: ModelGroup, by_sync: Mapping[int, Mapping[int, NonFinite]]) -> bool:
    """Every such step was skipped, and training went on."""
    events = [seen for own in by_sync.values() for seen in own.values()]
    if any(seen.stepped for seen in events):
        return False
    at_the_end = [sync for sync in by_sync if sync > _last_sync(group) - SKIPPED_ON_END]
    return len(at_the_end) < SKIPPED_ON_END


def _last_sync(group: ModelGroup) -> int:
    """The last reduction that is known of."""
    runs = [run for facts in group.facts.values() for run in facts.batches.get(group.number, ())]
    known = [run.sync + run.syncs - 1 for run in runs]
    known += [sync for rank in group.ranks for sync in group.samples(rank)]
    return max(known, default=0)


def _finding(group: ModelGroup, by_sync: Mapping[int, Mapping[int, NonFinite]]) -> Finding:
    sync = min(by_sync)
    first = by_sync[sync]
    began = tuple(sorted(rank for rank, seen in first.items() if seen.output))
    alone = began if len(began) < len(group.ranks) else ()
    step = min(seen.step for seen in first.values())
    one = next((seen for seen in first.values() if seen.parameters), next(iter(first.values())))
    stepped = any(seen.stepped for own in by_sync.values() for seen in own.values())
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if alone else Confidence.LIKELY,
        message=f"gradients of {group.label} are not finite from step {step} on; "
        + _origin(group, alone, began, one),
        fix=_fix(alone, step, stepped=stepped),
        culprits=alone,
        victims=tuple(rank for rank in group.ranks if rank not in alone) if alone else (),
        steps=((sync - 1, max(by_sync) - 1),),
        evidence=tuple(_evidence(one, by_sync, stepped=stepped)),
    )


def _origin(
    group: ModelGroup, alone: tuple[int, ...], began: tuple[int, ...], one: NonFinite
) -> str:
    if alone:
        return (
            f"it began in the loss of {rank_list(alone)}, and the reduction carried it to all ranks"
        )
    if one.weights:
        return "its weights were not finite already in that forward"
    if began:
        return "the losses of all ranks became so at once: training diverged"
    place = f" (the last in the model: {one.parameters[0]})" if one.parameters else ""
    return f"the losses were finite, so it arose within a backward or in the reduction{place}"


def _fix(alone: tuple[int, ...], step: int, *, stepped: bool) -> str:
    if alone:
        look = f"Look at the batch and the loss of {rank_list(alone)} in step {step}"
    else:
        look = f"Look at the loss and the learning rate in the steps before step {step}"
    skip = (
        "; decide on all ranks together to skip such a step: all-reduce `isfinite(loss)` first, "
        "or use torch.amp.GradScaler."
    )
    return look + (skip if stepped else "; since then every step is skipped.")


def _evidence(
    one: NonFinite, by_sync: Mapping[int, Mapping[int, NonFinite]], *, stepped: bool
) -> Iterator[Evidence]:
    for rank, seen in sorted(by_sync[min(by_sync)].items()):
        if seen.output is not None:
            yield Evidence(
                f"gradient of rank {rank}'s loss by the model's output",
                "not finite" if seen.output else "finite",
            )
    if one.parameters:
        yield Evidence("parameters whose gradient is not finite, then", one.parameter_count)
        yield Evidence("which are", few(one.parameters, one.parameter_count))
    yield Evidence("an optimizer step followed", "yes" if stepped else "no")
