"""DD506 steps-mixed: gradients of different steps are averaged together.

What it measures
    How many training forwards each rank has run when the ranks reduce together, and how many
    reductions each has made when a loader has given all of them as many batches. DDP counts
    reductions, not steps: a rank that leaves out a backward answers with its next one.

Why it matters
    After an exception that was caught, or a loss that is not connected to the model, nothing hangs:
    the rank's next gradients are reduced with those of the step before on the others. From then
    on all averages are of different steps, until the end of the loop, where the others wait.

What to do
    Do not leave out a backward on one rank. Let all ranks skip together (all-reduce the flag), or
    let the error end the job; keep a loss connected with `0 * output.sum()`.

When it is wrong
    A rank that evaluates in training mode with gradients on also runs more forwards. Where the
    numbers differ in many steps the ranks accumulate gradients differently, which is DD507's. A
    batch that is dropped before the model sees it is seen at the end of an epoch, and only where
    it comes from a DataLoader.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.analysis.dropped import Dropped, dropped_batches
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.modelcauses import Ahead, mixed
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.checks import trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.modelwording import compared_groups
from ddpdoctor.wording import rank_list


@trace_check("DD506", "steps-mixed")
def steps_mixed(run: Analysis) -> Iterator[Finding]:
    groups = compared_groups(run)
    first = next((group for group in groups if group.is_wrapped), None)
    for group in groups:
        found = mixed(group)
        if found is not None:
            yield _finding(group, found)
        elif group.is_wrapped and group is first:
            dropped = dropped_batches(run.run, group.ranks)
            if dropped is not None:
                yield _of_dropped(group, dropped)


def _finding(group: ModelGroup, found: Ahead) -> Finding:
    first = group.step_at(found.before) + 1 if found.before else 0
    last = max(first, group.step_at(found.sync))
    at = f"step {last}" if last == first else f"steps {first} to {last}"
    forwards = "forward" if found.by == 1 else "forwards"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"{rank_list(found.most)} ran {found.by} {forwards} of {group.label} without a "
            f"backward, the first in {at}; since then gradients of different steps are averaged"
        ),
        fix=(
            f"Look for what leaves out a backward on {rank_list(found.most)}: an exception that is "
            "caught, a `continue`, a loss that is not connected to the model. Skip on all ranks "
            "together, or keep the loss connected with `0 * output.sum()`."
        ),
        culprits=found.most,
        victims=tuple(rank for rank in group.ranks if rank not in found.most),
        steps=((first, last),),
        evidence=(
            Evidence(f"forwards before reduction {found.sync}", _said(found)),
            Evidence("ahead at the last look", found.by),
        ),
    )


def _of_dropped(group: ModelGroup, dropped: Dropped) -> Finding:
    ranks, site = dropped.ranks, dropped.site
    fewer = "reduction" if dropped.by == 1 else "reductions"
    said = ", ".join(f"{count} on rank {rank}" for rank, count in dropped.syncs.items())
    last = max(0, min(dropped.syncs.values()) - 1)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"{rank_list(ranks)} made {dropped.by} {fewer} fewer than the others of the "
            f"{dropped.batches} batches that each got by the end of epoch {dropped.epoch}; since a "
            "batch was dropped, gradients of different steps are averaged"
        ),
        fix=(
            f"Look for what drops a batch on {rank_list(ranks)}: a `continue`, an exception that "
            "is caught. Skip on all ranks together: all-reduce the flag first."
        ),
        culprits=ranks,
        victims=tuple(rank for rank in group.ranks if rank not in ranks),
        steps=((0, last),),
        evidence=(Evidence("reductions by then", said),),
        where=tuple(Location(r, site.file, site.line, site.function) for r in ranks)
        if site is not None
        else (),
    )


def _said(found: Ahead) -> str:
    return ", ".join(f"{count} on rank {rank}" for rank, count in found.counts.items())
