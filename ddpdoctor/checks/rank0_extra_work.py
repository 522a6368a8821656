"""DD108 rank0-extra-work: rank 0 does work of its own between steps, and the others wait.

What it measures
    The delay that rank 0 causes where it spends at least four fifths of it between its phases:
    what scripts do there under `if rank == 0` is logging, saving and evaluation. In most steps, at
    regular intervals, or now and then.

Why it matters
    While rank 0 writes, all other ranks stand at the next reduction; the more ranks, the more it
    costs. A save that takes too long also comes near the timeout of the group.

What to do
    Do it less often, or hand it to a thread (copy the tensors first); save asynchronously
    (torch.distributed.checkpoint.async_save); spread an evaluation over the ranks with a
    DistributedSampler.

When it is wrong
    A single stall is info: in a long training it may be rare enough. Rank 0 of a host that is
    slow in the Python between the phases, too, looks alike; the line that is named tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.waitmodel import Lateness, Waiting, WaitKind
from ddpdoctor.checks import trace_check
from ddpdoctor.checks.late_rank import judge_arrivals
from ddpdoctor.checks.periodic_stall import interval_said
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.waitwording import (
    confidence_of,
    finding_on,
    found,
    gain_said,
    lines_seen,
    origin_evidence,
    severity_of,
    share_evidence,
)
from ddpdoctor.wording import percent


@trace_check("DD108", "rank0-extra-work")
def rank0_extra_work(run: Analysis) -> Iterator[Finding]:
    judge_arrivals(run)
    for waiting in found(run, WaitKind.RANK_0):
        if waiting.lateness is not None:
            yield _finding(run, waiting, waiting.lateness)


def _finding(run: Analysis, waiting: Waiting, lateness: Lateness) -> Finding:
    return finding_on(
        run,
        waiting,
        severity=Severity.INFO if waiting.events == 1 else severity_of(run, waiting),
        confidence=confidence_of(lateness),
        message=(
            f"rank 0 works alone between its steps {_how_often(waiting, lateness)}, for "
            f"{lateness.late_ms:.1f} ms, and the job waits {waiting.lost_ms:.1f} ms of "
            f"{waiting.step_ms:.1f} ms a step for it"
        ),
        fix=_fix(waiting, lateness),
        evidence=tuple(_evidence(waiting, lateness)),
        where=lines_seen(lateness),
    )


def _how_often(waiting: Waiting, lateness: Lateness) -> str:
    if waiting.period is not None:
        return interval_said(waiting.period)
    if waiting.events:
        return f"in {waiting.events} step{'' if waiting.events == 1 else 's'}"
    return f"in {percent(lateness.last_share)} of steps"


def _evidence(waiting: Waiting, lateness: Lateness) -> Iterator[Evidence]:
    yield Evidence("delay it caused per step", waiting.lost_ms, "ms")
    yield share_evidence(waiting)
    if waiting.period is not None:
        yield Evidence("interval", interval_said(waiting.period))
    if waiting.events:
        yield Evidence("steps in which it did", waiting.events)
    yield from origin_evidence(lateness)


def _fix(waiting: Waiting, lateness: Lateness) -> str:
    often = "less often" if waiting.events else "every N steps instead of in each"
    return (
        f"What rank 0 does there costs all ranks {lateness.late_ms:.1f} ms each time. Do it "
        f"{often}, on a thread beside the training (copy the tensors first; for checkpoints "
        "torch.distributed.checkpoint.async_save), or spread it over the ranks."
        + gain_said(waiting)
    )
