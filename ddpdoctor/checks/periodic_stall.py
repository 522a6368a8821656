"""DD104 periodic-stall: at regular intervals a step takes far longer than the others.

What it measures
    Steps in which a rank is late, or all ranks have more to do, by far more than usual; and
    whether nearly all of that time lies at every n-th step, or at every so many seconds, as it
    would by chance in less than one of a thousand runs.

Why it matters
    Means hide it, medians even more. Nobody does anything about a pause that comes and goes,
    although over a long training it is a fixed share of the bill.

What to do
    The interval says which code it is: logging, evaluation, checkpoints, a scheduler, a profiler,
    a cron job on the host. Do it less often, on another thread, or spread it over the ranks.

When it is wrong
    Evaluation and checkpoints are wanted: what all ranks do together is a warning only from a
    tenth of the time on. Waiting for input in bursts is DD301, collections are DD105, and what
    rank 0 does alone is DD108.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.shapes import ON_TIME, Period
from ddpdoctor.analysis.waitjob import STEPS_NEEDED
from ddpdoctor.analysis.waitmodel import Lateness, Origin, Waiting, WaitKind
from ddpdoctor.checks import need_steps, trace_check
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.waitwording import (
    confidence_of,
    differences,
    finding_on,
    found,
    gain_said,
    lines_seen,
    origin_evidence,
    place_of,
    severity_of,
    share_evidence,
)

OF_ALL_WARNING: Final = 0.10  # below, what all ranks do at times is mostly meant


@trace_check("DD104", "periodic-stall")
def periodic_stall(run: Analysis) -> Iterator[Finding]:
    need_steps(run, STEPS_NEEDED)
    for waiting in found(run, WaitKind.PERIODIC):
        if waiting.lateness is not None and waiting.period is not None:
            yield _finding(run, waiting, waiting.lateness, waiting.period)


def interval_said(period: Period) -> str:
    if period.every_steps is not None:
        return f"every {period.every_steps} steps"
    return f"every {period.every_s or 0.0:.1f} s"


def _finding(run: Analysis, waiting: Waiting, lateness: Lateness, period: Period) -> Finding:
    who = f"rank {waiting.ranks[0]}" if waiting.ranks else "all ranks"
    is_named = lateness.origin in (Origin.SEEN, Origin.NAMED)
    where = f", in {place_of(lateness.excesses[0].phase)}" if is_named else ""
    return finding_on(
        run,
        waiting,
        severity=_severity(run, waiting),
        confidence=confidence_of(lateness),
        message=(
            f"{interval_said(period)} {who} take{'s' if waiting.ranks else ''} "
            f"{period.stall_ms:.1f} ms longer than usual{where}; that is "
            f"{waiting.lost_ms:.1f} ms of {waiting.step_ms:.1f} ms a step"
        ),
        fix=_fix(waiting, lateness, period, is_named=is_named),
        evidence=tuple(_evidence(waiting, lateness, period)),
        where=lines_seen(lateness),
    )


def _severity(run: Analysis, waiting: Waiting) -> Severity:
    if waiting.ranks:
        return severity_of(run, waiting)
    return Severity.WARNING if waiting.share >= OF_ALL_WARNING else Severity.INFO


def _evidence(waiting: Waiting, lateness: Lateness, period: Period) -> Iterator[Evidence]:
    yield Evidence("interval", interval_said(period))
    yield Evidence("stalls seen", period.stalls)
    yield Evidence("time of all stalls that lies there", 100 * period.on_time, "%", 100 * ON_TIME)
    yield Evidence("a stall lasts", period.stall_ms, "ms")
    yield share_evidence(waiting, OF_ALL_WARNING if not waiting.ranks else 0.05)
    yield from origin_evidence(lateness)


def _fix(waiting: Waiting, lateness: Lateness, period: Period, *, is_named: bool) -> str:
    who = f"rank {waiting.ranks[0]}" if waiting.ranks else "the ranks"
    doing = (
        f"Look for what {who} do{'es' if waiting.ranks else ''} {interval_said(period)}"
        if is_named
        else f"Not known which phase ({differences(lateness)}): look for what runs "
        f"{interval_said(period)}, in the script or on the host"
    )
    return (
        f"{doing}: logging, evaluation, a checkpoint. Do it less often, on a thread beside the "
        f"training, or spread over the ranks.{gain_said(waiting)}"
    )
