"""DD102 uneven-work: ranks are late in turn, each when its batch is larger.

What it measures
    Whether the rank that arrives last changes from step to step, and whether a rank's lateness
    follows the size of its batch (samples, or elements of its first tensor, padding included),
    over all ranks and steps.

Why it matters
    Every step takes as long as its largest batch. No rank is slow, so replacing one helps
    nothing, and phase times averaged over steps look alike.

What to do
    Balance the work of a step over the ranks: sort or bucket samples by length before they are
    dealt out, give batches equal sums of tokens instead of equal numbers of samples, or pack
    sequences. For attention the sum of squared lengths counts.

When it is wrong
    Where ranks are late in turn and the sizes do not follow, it is said as info, without a cause:
    random waits of a busy host look like that, and so do samples whose cost does not show in
    their size.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.waiting import FOLLOWS_R
from ddpdoctor.analysis.waitmodel import Lateness, Origin, Waiting, WaitKind
from ddpdoctor.analysis.worksizes import WorkFit
from ddpdoctor.checks import trace_check
from ddpdoctor.checks.late_rank import judge_arrivals
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.waitwording import (
    by_share,
    differences,
    found,
    gain_said,
    hosts_of,
    lost_s,
    origin_said,
    share_evidence,
    steps_of,
)
from ddpdoctor.wording import percent


@trace_check("DD102", "uneven-work")
def uneven_work(run: Analysis) -> Iterator[Finding]:
    judge_arrivals(run)
    for waiting in found(run, WaitKind.UNEVEN, WaitKind.IN_TURN):
        if waiting.lateness is not None:
            yield _finding(run, waiting, waiting.lateness)


def _finding(run: Analysis, waiting: Waiting, lateness: Lateness) -> Finding:
    fit = waiting.fit if waiting.kind is WaitKind.UNEVEN else None
    why = f"as its batch is large (r = {fit.r:.2f})" if fit else "not known why"
    return Finding(
        severity=by_share(waiting) if fit else Severity.INFO,
        confidence=Confidence.LIKELY if fit else Confidence.POSSIBLE,
        message=(
            f"the ranks are late in turn, {why}: the job waits {waiting.lost_ms:.1f} ms of "
            f"{waiting.step_ms:.1f} ms a step for whichever is last, and none is last in more "
            f"than {percent(lateness.last_share)} of steps"
        ),
        fix=_fix(waiting, fit) if fit else _next(waiting, lateness),
        hosts=hosts_of(run, waiting),
        steps=steps_of(run, waiting),
        evidence=tuple(_evidence(waiting, lateness)),
        lost_s=lost_s(run, waiting),
    )


def _evidence(waiting: Waiting, lateness: Lateness) -> Iterator[Evidence]:
    yield Evidence("a step waits for its last rank", waiting.lost_ms, "ms")
    yield share_evidence(waiting)
    yield Evidence("steps in which the same rank was last, at most", 100 * lateness.last_share, "%")
    fit = waiting.fit
    yield Evidence("lateness follows the batch's size, r", fit.r if fit else None, "", FOLLOWS_R)
    if fit is not None:
        yield Evidence("size is counted in", fit.size)
        yield Evidence("largest batch of a step against the mean", fit.largest, "times")
    yield Evidence("ranks differ in waiting for a CPU by", waiting.noise_ms, "ms")


def _fix(waiting: Waiting, fit: WorkFit) -> str:
    return (
        f"In a step the largest batch has {fit.largest:.2f} times the mean's {fit.size}. Balance "
        "them: deal samples out by length (or by sums of tokens) so that the ranks' batches of a "
        "step are alike. No rank or host is to blame." + gain_said(waiting)
    )


def _next(waiting: Waiting, lateness: Lateness) -> str:
    named = lateness.origin is Origin.NAMED
    comes = f"{origin_said(lateness)}. " if named else ""
    return (
        f"Not known: the last rank differs from the others by {differences(lateness)}. {comes}"
        "Measure next: log the size and the time of each sample, and look for other processes "
        f"on the hosts.{gain_said(waiting)}"
    )
