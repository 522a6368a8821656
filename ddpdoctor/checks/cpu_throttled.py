"""DD107 cpu-throttled: a CPU quota stops ranks, and the others wait for them.

What it measures
    How long the quota of a rank's control group (a container's CPU limit) kept its training
    thread from running, and by how much a step would be shorter without that.

Why it matters
    A quota is spent within each period of usually 100 ms; then all threads of the group stop until
    the next. Means of CPU use look moderate, and steps come in jerks. The rank seems slow in
    whatever phase it was stopped in.

What to do
    Raise the limit of that container, or make the rank fit: no more threads than the quota has
    CPUs, and loader workers counted, since they share it.

When it is wrong
    The kernel counts all threads of a group together, and books them late; how much of it was the
    training thread's is bounded by its own wait for a CPU, which is what counts here.
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
from ddpdoctor.wording import percent, rank_list


@trace_check("DD107", "cpu-throttled")
def cpu_throttled(run: Analysis) -> Iterator[Finding]:
    need_steps(run, STEPS_NEEDED)
    if run.times and all(times.throttled_ms is None for times in run.times):
        raise NotEnoughData("it could not be seen whether a CPU quota holds the ranks")
    for waiting in found(run, WaitKind.QUOTA):
        if waiting.held is not None:
            yield _finding(run, waiting, waiting.held)


def _finding(run: Analysis, waiting: Waiting, held: Held) -> Finding:
    who = rank_list(waiting.ranks) if waiting.ranks else "every rank"
    return finding_on(
        run,
        waiting,
        severity=by_share(waiting),
        confidence=Confidence.CERTAIN,
        message=(
            f"{who} {'are' if len(waiting.ranks) > 1 else 'is'} stopped by a CPU quota, which "
            f"costs {waiting.lost_ms:.1f} ms of {waiting.step_ms:.1f} ms a step "
            f"({percent(waiting.share)})"
        ),
        fix=_fix(waiting),
        evidence=tuple(_evidence(run, waiting, held)),
    )


def _evidence(run: Analysis, waiting: Waiting, held: Held) -> Iterator[Evidence]:
    yield Evidence("a step would be shorter without it by", waiting.lost_ms, "ms")
    yield share_evidence(waiting)
    for stats in run.ranks:
        if stats.times is not None and held.ms_by_rank.get(stats.rank):
            yield Evidence(f"quota stops rank {stats.rank}", stats.times.throttled_ms, "ms a step")
            yield Evidence(f"rank {stats.rank} waits for a CPU", stats.times.run_queue_ms, "ms")


def _fix(waiting: Waiting) -> str:
    whom = f"of {rank_list(waiting.ranks)}" if waiting.ranks else "of the ranks"
    return (
        f"Raise the CPU quota {whom} (the container's limit, cpu.max or cpu.cfs_quota_us), or use "
        "no more threads and loader workers than it has CPUs (OMP_NUM_THREADS, num_workers)."
        + gain_said(waiting)
    )
