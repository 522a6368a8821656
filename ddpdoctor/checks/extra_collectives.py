"""DD205 extra-collectives: calls beside the gradients take a part of each step.

What it measures
    Per line and operation the collectives that hold the training thread up and are no buckets of
    gradients: DDP's broadcast of buffers, SyncBatchNorm, metrics, gathers of objects. Of each the
    time of transfer a step, with waiting for late ranks taken out: other calls would wait for them
    as well.

Why it matters
    Each is a stop of all ranks with a round trip of its own, whatever small number is in it, and
    none of them hides behind compute.

What to do
    Reduce metrics every N steps or once an epoch, several in one tensor. Set
    `broadcast_buffers=False` where the ranks' statistics may differ between checkpoints. Keep
    SyncBatchNorm for small batches a rank. `all_gather_object` pickles: gather a tensor.

When it is wrong
    Some of them the training needs: sums that the loss is built from, gathers of a contrastive
    loss, gradient norms over shards. Between ranks of one host they cost CPU time, and more on a
    busy machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.extras import site_of
from ddpdoctor.analysis.gaintypes import ExtraCall
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.checks import NotEnoughData, need_steps, trace_check
from ddpdoctor.events import Op
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import percent

STEPS_NEEDED: Final = 8  # fewer, and one busy moment is taken for a habit
SHARE_INFO: Final = 0.05  # of the step: less drowns in its noise
SHARE_WARNING: Final = 0.10
SHARE_ERROR: Final = 0.40
LEAST_MS: Final = 0.5  # of a step: what a quiet host's scheduler takes now and then
OFTEN: Final = 0.5  # calls a step; rarer ones are made every N steps already
SEVERAL: Final = 2  # calls a step
SHOWN: Final = 3


@trace_check("DD205", "extra-collectives")
def extra_collectives(run: Analysis) -> Iterator[Finding]:
    if run.world_size == 1:
        raise NotEnoughData("a single rank sends nothing")
    need_steps(run, STEPS_NEEDED)
    if run.calls is None or run.step_ms is None or not run.has_all_ranks:
        raise NotEnoughData("transfer is not measured: clocks differ, or ranks are missing")
    extras = [extra for extra in run.calls.extras if extra.calls >= OFTEN]
    cost_ms = sum(_cost_ms(extra) for extra in extras)
    share = cost_ms / run.step_ms
    if share >= SHARE_INFO and cost_ms >= LEAST_MS:
        yield _finding(run, sorted(extras, key=_cost_ms, reverse=True), cost_ms, run.step_ms)


def _cost_ms(extra: ExtraCall) -> float:
    """By the replay where that is sure, since a stop less may also cost less waiting."""
    saved, error = extra.saved_ms, extra.error_ms
    return saved if saved is not None and error is not None and saved > error else extra.transfer_ms


def _finding(run: Analysis, extras: list[ExtraCall], cost_ms: float, step_ms: float) -> Finding:
    share = cost_ms / step_ms
    named = "; ".join(_said(extra) for extra in extras[:SHOWN])
    more = len(extras) - SHOWN
    return Finding(
        severity=_severity(share) if _is_the_scripts(run, extras) else Severity.INFO,
        confidence=Confidence.LIKELY,
        message=(
            f"calls beside the gradients take {cost_ms:.1f} ms of {step_ms:.1f} ms a step "
            f"({percent(share)}): {named}" + (f"; and {more} more" if more > 0 else "")
        ),
        fix=_fix(run, extras[0], cost_ms, step_ms),
        steps=((run.steps.first_sync, run.steps.last_sync),),
        evidence=(
            Evidence("transfer of extra calls, per step", cost_ms, "ms"),
            Evidence("share of the step", 100 * share, "%", 100 * SHARE_WARNING),
            Evidence("extra calls per step", sum(extra.calls for extra in extras)),
            *(Evidence(_said(each), each.transfer_ms, "ms") for each in extras[:SHOWN]),
        ),
        lost_s=cost_ms * run.steps.counted / 1e3,
    )


def _is_the_scripts(run: Analysis, extras: list[ExtraCall]) -> bool:
    """On one host a call is little but waking two threads, which a busy host makes dear: what DDP
    does by itself, or a single call, is no fault there."""
    own = sum(extra.calls for extra in extras if not extra.buffers)
    return not run.moved_by_the_cpu or own >= SEVERAL


def _severity(share: float) -> Severity:
    if share < SHARE_WARNING:
        return Severity.INFO
    return Severity.ERROR if share >= SHARE_ERROR else Severity.WARNING


def _said(extra: ExtraCall) -> str:
    what = "DDP's broadcast of buffers" if extra.buffers else extra.op.label
    return f"{extra.calls:.3g} × {what} at {site_of(extra.site)}"


def _fix(run: Analysis, dearest: ExtraCall, cost_ms: float, step_ms: float) -> str:
    known = (
        f" Without them a step would take about {step_ms - cost_ms:.1f} ms instead of "
        f"{step_ms:.1f} ms."
        if not run.moved_by_the_cpu
        else ""
    )
    return _advice(dearest) + known


def _advice(extra: ExtraCall) -> str:
    place = site_of(extra.site)
    if extra.buffers:
        return (
            "Wrap the model with broadcast_buffers=False where the ranks' running statistics may "
            "differ, and average or broadcast them before evaluation and saving; or have fewer "
            "buffers."
        )
    if extra.op is Op.BARRIER:
        return f"Take the barrier at {place} out of the loop: the gradients' reduction is one."
    several = f" Put the {extra.calls:.0f} tensors of a step into one." if extra.calls >= 2 else ""
    return (
        f"If it is a metric at {place}, add it up on each rank and reduce it every N steps or once "
        f"an epoch, as one tensor.{several} If the model needs it (SyncBatchNorm, a loss over all "
        "ranks), use it in fewer layers or with larger batches."
    )
