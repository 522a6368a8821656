"""DD201 bandwidth-bound: the step waits for gradients to move over the network.

What it measures
    Transfer: the time in which the training thread stands in a collective after the last
    rank has arrived. Of that, the part that grows with the bytes (beta) and not with the number of
    messages (alpha), which small collectives of the same run tell.

Why it matters
    Faster devices and better input change nothing here, and every rank added makes it worse.

What to do
    Move fewer bytes: a gradient compression hook (fp16_compress_hook halves them), or fewer
    reductions (gradient accumulation under `no_sync`). Or move them faster: check that the intended
    interface is used (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), then the link itself.

When it is wrong
    On gloo between ranks of one host no link is in use: transfers are copies by the CPU and compete
    with compute for it. They are then reported as info, since no network can be at fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.gaintypes import ACCUMULATED, Fix
from ddpdoctor.analysis.model import Analysis, LinkFit
from ddpdoctor.baseline import slow_links
from ddpdoctor.checks import trace_check
from ddpdoctor.exposed import exposed, gain_said, hideable_of_buckets
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import percent

SHARE_WARNING: Final = 0.20  # below, compression costs as much as it gains
SHARE_ERROR: Final = 0.50
LEAST_MS: Final = 2.0  # a smaller transfer is within the scheduling noise of a busy host
BETA_EXPLAINS: Final = 0.5  # more than half of the busy time must grow with the bytes
REACHED: Final = 0.7  # of the baseline's bandwidth: with more of it, the link gives no more


@trace_check("DD201", "bandwidth-bound")
def bandwidth_bound(run: Analysis) -> Iterator[Finding]:
    found = exposed(run)
    if run.run.network is not None and slow_links(run.run.network):
        return  # one link sets the pace of all: DD206
    bytes_ms = found.bytes_ms - hideable_of_buckets(run)
    share = bytes_ms / found.step_ms
    grows_with_bytes = 1 - found.latency_share > BETA_EXPLAINS
    if share >= SHARE_WARNING and bytes_ms >= LEAST_MS and grows_with_bytes:
        yield _finding(run, found.link, found.bytes_ms, found.step_ms)


def _finding(run: Analysis, link: LinkFit, bytes_ms: float, step_ms: float) -> Finding:
    share = bytes_ms / step_ms
    hosts = tuple(sorted({stats.host for stats in run.ranks}))
    by_cpu = run.moved_by_the_cpu
    megabytes = link.bytes_per_step / 1e6
    return Finding(
        severity=_severity(share, by_cpu=by_cpu),
        confidence=Confidence.LIKELY,
        message=(
            f"the step waits {bytes_ms:.1f} ms of {step_ms:.1f} ms ({percent(share)}) for "
            f"{megabytes:.1f} MB of gradients to move, at {link.busbw_gb_per_s or 0:.3f} GB/s"
        ),
        fix=_fix_of_cpu(run) if by_cpu else _fix_of_link(run, link),
        hosts=hosts,
        steps=((run.steps.first_sync, run.steps.last_sync),),
        evidence=tuple(_evidence(run, link, bytes_ms, share)),
        lost_s=bytes_ms * run.steps.counted / 1e3,
    )


def _evidence(run: Analysis, link: LinkFit, bytes_ms: float, share: float) -> Iterator[Evidence]:
    yield Evidence("transfer that grows with the bytes, per step", bytes_ms, "ms")
    yield Evidence("share of the step", 100 * share, "%", 100 * SHARE_WARNING)
    yield Evidence("bus bandwidth reached", link.busbw_gb_per_s, "GB/s")
    yield Evidence("bytes reduced per step", link.bytes_per_step, "B")
    yield Evidence("collectives per step", link.collectives_per_step)
    yield Evidence("a small message takes (alpha)", link.alpha_ms, "ms")
    overlapped = [times.overlapped_ms or 0.0 for times in run.times]
    yield Evidence("communication hidden behind compute", sum(overlapped) / len(overlapped), "ms")
    yield Evidence("backend", run.run.info.backend)
    if run.run.network is not None:
        measured = run.run.network.busbw_gb_per_s
        yield Evidence("bus bandwidth measured before the run", measured, "GB/s")
    for gain in run.gains.gains:
        if gain.is_sure and gain.fix in (Fix.COMPRESS, Fix.ACCUMULATE, Fix.FASTER_LINK):
            yield Evidence(
                f"saved a step by {gain.fix.value} ({gain.setting})", gain.saved_ms, "ms"
            )


def _severity(share: float, *, by_cpu: bool) -> Severity:
    if by_cpu:
        return Severity.INFO
    return Severity.ERROR if share >= SHARE_ERROR else Severity.WARNING


def _fix_of_cpu(run: Analysis) -> str:
    threads = sum(trace.info.threads or 0 for trace in run.run.ranks)
    cpus = run.run.ranks[0].info.cpus
    return (
        f"The ranks share a host, and gloo moves their gradients by the CPU: {threads} "
        f"compute threads "
        f"of {len(run.ranks)} ranks on {cpus} CPUs leave it little. Use fewer threads or "
        f"ranks a host; on "
        "GPUs use NCCL."
    )


def _fix_of_link(run: Analysis, link: LinkFit) -> str:
    compress, accumulate = run.gains.of(Fix.COMPRESS), run.gains.of(Fix.ACCUMULATE)
    hook = "model.register_comm_hook(None, default_hooks.fp16_compress_hook)"
    every = f"reduce only every {ACCUMULATED}th micro-batch (model.no_sync())"
    saved = {
        gain: text
        for gain, text in ((compress, f"halve the bytes by {hook}"), (accumulate, every))
        if gain is not None and gain.is_sure
    }
    if saved:
        ways = "; or ".join(f"{text}: {gain}" for gain, text in saved.items())
    else:
        ways = f"halve the bytes by {hook}, or {every}. {gain_said(compress, run)}"
    return f"{_of_interface(run, link)} {ways[0].upper()}{ways[1:]}"


def _of_interface(run: Analysis, link: LinkFit) -> str:
    reached = link.busbw_gb_per_s or 0.0
    known = run.run.network.busbw_gb_per_s if run.run.network is not None else None
    if known is None:
        return (
            f"If {reached:.3f} GB/s is below what the network should give, check first which "
            "interface is used (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)."
        )
    if reached >= REACHED * known:
        return f"The network gives no more: {known:.3f} GB/s were measured before the run."
    return (
        f"Before the run the same network gave {known:.3f} GB/s: look first for what else uses it "
        "or the CPUs now."
    )
