"""DD105 gc-pauses: Python's garbage collection stops ranks, and the others wait for them.

What it measures
    Collections on the training thread, as Python announces them, and by how much a step would be
    shorter without them: where one rank collects, all the others wait at the next reduction.

Why it matters
    Each rank collects when its own counters say so. With many ranks there is nearly always one
    that does, so the loss grows with their number, and no rank stands out in a mean.

What to do
    Call `gc.freeze()` once model and data are made, so that what lives long is no longer looked
    through. Then switch automatic collection off (`gc.disable()`) and call `gc.collect()` every N
    steps, on all ranks in the same step. Never switch it off for good: cycles would leak.

When it is wrong
    Collections on loader workers or other threads are not seen here. In a very short run the
    pauses that clear up after the imports weigh more than they will in a long one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.waitjob import STEPS_NEEDED
from ddpdoctor.analysis.waitmodel import Held, Waiting, WaitKind
from ddpdoctor.checks import NotEnoughData, need_steps, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding
from ddpdoctor.waitwording import (
    by_share,
    finding_on,
    found,
    gain_said,
    share_evidence,
)
from ddpdoctor.wording import rank_list


@trace_check("DD105", "gc-pauses")
def gc_pauses(run: Analysis) -> Iterator[Finding]:
    need_steps(run, STEPS_NEEDED)
    if run.times and all(times.gc_ms is None for times in run.times):
        raise NotEnoughData("collections were not recorded")
    for waiting in found(run, WaitKind.PAUSES):
        if waiting.held is not None:
            yield _finding(run, waiting, waiting.held)


def _finding(run: Analysis, waiting: Waiting, held: Held) -> Finding:
    who = rank_list(waiting.ranks) if waiting.ranks else "every rank"
    grows = ", and the pauses become longer" if held.grows else ""
    return finding_on(
        run,
        waiting,
        severity=by_share(waiting),
        confidence=Confidence.CERTAIN,
        message=(
            f"{who} stop{'' if len(waiting.ranks) > 1 else 's'} to collect garbage, for up to "
            f"{held.longest_ms or 0.0:.1f} ms: the job loses {waiting.lost_ms:.1f} ms of "
            f"{waiting.step_ms:.1f} ms a step{grows}"
        ),
        fix=_fix(waiting, held),
        evidence=tuple(_evidence(waiting, held)),
    )


def _evidence(waiting: Waiting, held: Held) -> Iterator[Evidence]:
    worst = max(held.ms_by_rank, key=lambda rank: held.ms_by_rank[rank])
    yield Evidence("a step would be shorter without them by", waiting.lost_ms, "ms")
    yield share_evidence(waiting)
    yield Evidence(f"pauses of a millisecond or more on rank {worst}", held.pauses)
    yield Evidence("the longest of them", held.longest_ms, "ms")
    yield Evidence(f"collecting on rank {worst}, per step", held.ms_by_rank[worst], "ms")


def _fix(waiting: Waiting, held: Held) -> str:
    growing = " What they look through grows: find which objects are kept." if held.grows else ""
    return (
        "Call gc.freeze() after model and data are made, gc.disable(), and gc.collect() every N "
        "steps on all ranks in the same step (not never: cycles leak). Where the script calls "
        f"gc.collect() itself, do it less often.{growing}{gain_said(waiting)}"
    )
