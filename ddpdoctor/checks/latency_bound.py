"""DD202 latency-bound: gradients go in many small messages, and each costs a fixed time.

What it measures
    The part of the transfer that the step waits for which does not grow with the bytes: what a
    small message takes (alpha), times the number of bucket reductions that hide no other's
    latency.

Why it matters
    Each message passes through all ranks before it is reduced, however little is in it. With many
    small ones the step waits for the network while hardly anything moves, and more ranks make it
    worse.

What to do
    Let DDP put more gradients into one message: raise `bucket_cap_mb` (25 is its own), and leave
    the buckets to it where a comm hook or a loop of your own reduces each parameter.

When it is wrong
    Between ranks of one host a message costs CPU time, not latency of a network; larger buckets
    save that, too, and how much is then not predicted. Small calls that are not gradients are told
    by DD205.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.gaintypes import Fix
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.checks import trace_check
from ddpdoctor.exposed import Exposed, exposed, gain_said
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import percent

SHARE_WARNING: Final = 0.10  # of the step; larger buckets cost nothing, so less than for bandwidth
SHARE_ERROR: Final = 0.50
LEAST_MS: Final = 2.0  # a smaller transfer is within the scheduling noise of a busy host
ALPHA_EXPLAINS: Final = 0.5  # more than half of the busy time must come with each message
LEAST_BUCKETS: Final = 8  # fewer cannot be merged into much less
MANY_TIMES: Final = 4  # so many times the buckets that DDP's own cap would make


@trace_check("DD202", "latency-bound")
def latency_bound(run: Analysis) -> Iterator[Finding]:
    found = exposed(run)
    buckets = _buckets(run, found)
    share = found.latency_ms / found.step_ms
    needed = max(1.0, found.link.bytes_per_step / (25 * 2**20))
    if (
        buckets >= max(LEAST_BUCKETS, MANY_TIMES * needed)
        and found.latency_share > ALPHA_EXPLAINS
        and share >= SHARE_WARNING
        and found.latency_ms >= LEAST_MS
    ):
        yield _finding(run, found, buckets)


def _buckets(run: Analysis, found: Exposed) -> float:
    """Reductions of gradients a step."""
    if run.calls is not None and run.calls.buckets is not None:
        return len(run.calls.buckets.nbytes)
    extras = sum(extra.calls for extra in run.calls.extras) if run.calls is not None else 0.0
    return found.link.collectives_per_step - extras


def _finding(run: Analysis, found: Exposed, buckets: float) -> Finding:
    share = found.latency_ms / found.step_ms
    mean = found.link.bytes_per_step / max(1.0, found.link.collectives_per_step)
    return Finding(
        severity=Severity.ERROR if share >= SHARE_ERROR else Severity.WARNING,
        confidence=Confidence.LIKELY,
        message=(
            f"gradients go in {buckets:.0f} messages a step of {mean / 1e3:.0f} kB on average, "
            f"and each takes {found.link.alpha_ms or 0:.2f} ms whatever is in it: "
            f"{found.latency_ms:.1f} ms of {found.step_ms:.1f} ms ({percent(share)})"
        ),
        fix=_fix(run),
        hosts=tuple(sorted({stats.host for stats in run.ranks})),
        steps=((run.steps.first_sync, run.steps.last_sync),),
        evidence=tuple(_evidence(run, found, buckets)),
        lost_s=found.latency_ms * run.steps.counted / 1e3,
    )


def _fix(run: Analysis) -> str:
    gain = run.gains.of(Fix.BUCKET_SIZE)
    setting = gain.setting if gain is not None and gain.is_sure else "bucket_cap_mb=25"
    return (
        f"Wrap the model with {setting}, or leave the argument out, so that fewer and larger "
        f"buckets are reduced. {gain_said(gain, run)}"
    )


def _evidence(run: Analysis, found: Exposed, buckets: float) -> Iterator[Evidence]:
    yield Evidence("transfer that comes with each message, per step", found.latency_ms, "ms")
    share = 100 * found.latency_ms / found.step_ms
    yield Evidence("share of the step", share, "%", 100 * SHARE_WARNING)
    yield Evidence("buckets per step", buckets, "", LEAST_BUCKETS)
    yield Evidence("a small message takes (alpha)", found.link.alpha_ms, "ms")
    yield Evidence("bytes reduced per step", found.link.bytes_per_step, "B")
    if run.run.network is not None:
        yield Evidence("alpha measured before the run", run.run.network.alpha_ms, "ms")
    gain = run.gains.of(Fix.BUCKET_SIZE)
    if gain is not None and gain.is_sure:
        yield Evidence(f"saved a step by {gain.setting}", gain.saved_ms, "ms")
