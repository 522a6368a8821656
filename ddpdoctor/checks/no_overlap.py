"""DD203 no-overlap: gradients move after backward where they could move during it.

What it measures
    How much of the transfer backward could hide if gradients were ready evenly over it, against
    what it does hide; and when each bucket was ready on all ranks.

Why it matters
    DDP reduces a bucket as soon as its last gradient is there, while backward goes on to the layers
    before. With one bucket, or with all of them ready at the end, the step pays for computing and
    for moving one after the other.

What to do
    Smaller buckets (`bucket_cap_mb`) where one holds nearly all. Where all are ready only at the
    end: a graph that is compiled as a whole, parameters shared over all layers, or gradients that
    are made in one piece keep them back.

When it is wrong
    The last bucket can never be hidden, and where the network needs longer than backward takes,
    most of it cannot: that is DD201's. Between ranks of one host transfers take the CPU that
    compute needs, so that hiding them gains nothing, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.gaintypes import BucketUse, Fix
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.exposed import exposed, gain_said, hideable_of_buckets, is_bunched
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import percent

SHARE_WARNING: Final = 0.10  # of the step
LEAST_MS: Final = 2.0  # a smaller transfer is within the scheduling noise of a busy host
HIDDEN: Final = 0.3  # of the transfer: with more of it hidden, overlap works


@trace_check("DD203", "no-overlap")
def no_overlap(run: Analysis) -> Iterator[Finding]:
    found = exposed(run)
    use = run.calls.buckets if run.calls is not None else None
    if run.moved_by_the_cpu:
        raise NotEnoughData(
            "transfers between ranks of one host take the CPU that compute needs: there is nothing "
            "to hide behind"
        )
    if use is None:
        raise NotEnoughData(run.gains.reason or "no step was seen with all of its buckets")
    could_ms = hideable_of_buckets(run)
    hidden = 1 - use.exposed_ms / use.transfer_ms if use.transfer_ms > 0 else 1.0
    share = could_ms / found.step_ms
    if share >= SHARE_WARNING and could_ms >= LEAST_MS and hidden < HIDDEN:
        yield _finding(run, use, could_ms, found.step_ms, hidden)


def _finding(
    run: Analysis, use: BucketUse, could_ms: float, step_ms: float, hidden: float
) -> Finding:
    bunched = is_bunched(use)
    count = len(use.nbytes)
    how = (
        f"all {count} buckets are ready only after {percent(use.ready_share[0])} of backward"
        if bunched
        else f"{percent(max(use.nbytes) / sum(use.nbytes))} of the gradients are in one bucket"
    )
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE if bunched else Confidence.LIKELY,
        message=(
            f"backward takes {use.backward_ms:.1f} ms and hides {percent(max(0.0, hidden))} of "
            f"{use.transfer_ms:.1f} ms of transfer: {how}; up to {could_ms:.1f} ms of "
            f"{step_ms:.1f} ms a step could be hidden"
        ),
        fix=_fix_of_bunched() if bunched else _fix_of_size(run),
        steps=((run.steps.first_sync, run.steps.last_sync),),
        evidence=(
            Evidence("transfer that backward could hide, per step", could_ms, "ms"),
            Evidence("share of the step", 100 * could_ms / step_ms, "%", 100 * SHARE_WARNING),
            Evidence("transfer that is hidden", 100 * hidden, "%", 100 * HIDDEN),
            Evidence("buckets per step", count),
            Evidence("first bucket ready after, of backward", 100 * use.ready_share[0], "%"),
        ),
        lost_s=could_ms * run.steps.counted / 1e3,
    )


def _fix_of_size(run: Analysis) -> str:
    gain = run.gains.of(Fix.BUCKET_SIZE)
    setting = gain.setting if gain is not None else "a smaller bucket_cap_mb"
    return f"Wrap the model with {setting}. {gain_said(gain, run)}"


def _fix_of_bunched() -> str:
    return (
        "Not known what keeps the gradients back. Compile the model within DDP and not around it "
        "(torch.compile splits at bucket boundaries then), and look for parameters that all layers "
        "share, or whose gradients one custom autograd function makes. Measure next: the same "
        "script without these, and see when the first bucket is ready."
    )
