"""DD204 sync-every-microbatch: gradients are reduced several times for one optimizer step.

What it measures
    At the reductions that are looked at: whether the backward adds to gradients that were reduced
    before and on which no step was made yet; reductions per optimizer step; and backwards within
    `no_sync` that reduced all the same.

Why it matters
    One reduction of the accumulated gradients is enough. Each other one costs its transfer, and
    all ranks wait for the slowest as many times more.

What to do
    Run forward and backward of all micro-batches but the last within `model.no_sync()`. Around the
    backward alone it does nothing: DDP decides in the forward.

When it is wrong
    Where memory is short, `no_sync` may not be wanted: it keeps full gradients on each rank, as
    accumulating does anyway. Two losses that are reduced one after the other look like this; they
    may be added up. The time lost is what the transfers take that could be left out, without
    the waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity

LEAST_LOOKS: Final = 4  # of which the first of a step never adds to anything
LEAST_ACCUMULATED: Final = 0.3  # of the looks; where every second backward steps, about a half
LEAST_REDUCTIONS: Final = 1.5  # per optimizer step, up to the last look
SHARE_WARNING: Final = 0.02  # of a step that is lost; less is within the noise of steps


@dataclass(frozen=True)
class _Accumulated:
    per_step: float
    looks: int
    accumulated: int
    late_no_sync: float  # share of reductions


@trace_check("DD204", "sync-every-microbatch")
def sync_every_microbatch(run: Analysis) -> Iterator[Finding]:
    looked = False
    for group in run.models:
        if len(group.ranks) < 2 or not group.is_wrapped:
            continue
        found = {rank: own for rank in group.ranks if (own := _of(group, rank)) is not None}
        looked = looked or bool(found)
        least = min(found.values(), key=lambda own: own.per_step, default=None)
        if least is not None and len(found) == len(group.ranks) and _is_often(least):
            yield _finding(run, group, least)
    if not looked:
        raise NotEnoughData("too few reductions of one model were looked at on two ranks")


def _of(group: ModelGroup, rank: int) -> _Accumulated | None:
    samples = [sample for _, sample in sorted(group.samples(rank).items())]
    if len(samples) < LEAST_LOOKS:
        return None
    last = samples[-1]
    return _Accumulated(
        last.sync / (last.optimizer_steps + 1),  # the step that is to follow included
        len(samples),
        sum(sample.accumulated for sample in samples),
        last.late_no_sync / max(1, last.sync),
    )


def _is_often(own: _Accumulated) -> bool:
    accumulates = own.accumulated >= LEAST_ACCUMULATED * own.looks
    return accumulates and own.per_step >= LEAST_REDUCTIONS


def _finding(run: Analysis, group: ModelGroup, own: _Accumulated) -> Finding:
    lost_ms, share = _lost(run, own.per_step)
    in_vain = own.late_no_sync > 0
    often = in_vain or (share is not None and share >= SHARE_WARNING)
    return Finding(
        severity=Severity.WARNING if often else Severity.INFO,
        confidence=Confidence.CERTAIN if in_vain else Confidence.LIKELY,
        message=(
            f"gradients of {group.label} are reduced {own.per_step:.3g} times for one optimizer "
            "step, each time added to those reduced before"
            + ("; no_sync is on in backwards, but not in their forwards: it does nothing there"
               if in_vain else "")
        ),
        fix=(
            "Put the forward of each micro-batch but the last within `with model.no_sync():`, "
            "together with its backward: the forward decides whether gradients are reduced."
        ),
        steps=((run.steps.first_sync, run.steps.last_sync),) if run.steps.counted else (),
        evidence=(
            Evidence("reductions per optimizer step", own.per_step, "", LEAST_REDUCTIONS),
            Evidence("looks that added to reduced gradients", f"{own.accumulated} of {own.looks}"),
            Evidence("reductions although no_sync was on", 100 * own.late_no_sync, "%"),
            Evidence("transfer that could be left out, per step", lost_ms, "ms"),
        ),
        lost_s=None if lost_ms is None else lost_ms * run.steps.counted / 1e3,
    )  # fmt: skip


def _lost(run: Analysis, per_step: float) -> tuple[float | None, float | None]:
    """Milliseconds a step, and their share of it; None where transfer was not measured."""
    known = [times.transfer_ms for times in run.times if times.transfer_ms is not None]
    if not known or not run.step_ms:
        return None, None
    lost_ms = (1 - 1 / per_step) * sum(known) / len(known)
    return lost_ms, lost_ms / run.step_ms
