"""DD106 cpu-oversubscribed: ranks are ready to run and find no free CPU.

What it measures
    The run queue: how long the kernel kept the training thread waiting for a CPU, and by how much
    a step would be shorter without that. Beside it, what the job itself asks for: threads of all
    ranks of a host, and the CPUs that each rank may use.

Why it matters
    Too many threads make every phase longer, on changing ranks, so that the input, the network
    or a rank seem slow. Until the CPUs are free, no other finding on this run is to be trusted far.

What to do
    Give a rank as many threads as CPUs are its share (OMP_NUM_THREADS = CPUs / ranks of the
    host), and count loader workers as well. Where ranks may use the same CPU only, undo the
    affinity (taskset, a library that pins, the scheduler's CPUs per task).

When it is wrong
    Where the job does not take more than there is, somebody else does: then the measurement was
    disturbed, which is info. A few percent of waiting are usual on any host that is in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.held import QUEUE_LEAST_SHARE
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.waitjob import STEPS_NEEDED
from ddpdoctor.analysis.waitmodel import Held, Waiting, WaitKind
from ddpdoctor.checks import NotEnoughData, need_steps, trace_check
from ddpdoctor.events import RankInfo
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.waitwording import (
    finding_on,
    found,
    gain_said,
    share_evidence,
)
from ddpdoctor.wording import percent, rank_list

SHARE_ERROR: Final = 0.50  # the ranks stand more than they run


@trace_check("DD106", "cpu-oversubscribed")
def cpu_oversubscribed(run: Analysis) -> Iterator[Finding]:
    need_steps(run, STEPS_NEEDED)
    if run.times and all(times.run_queue_ms is None for times in run.times):
        raise NotEnoughData("this kernel does not count how long a thread waits for a CPU")
    for waiting in found(run, WaitKind.QUEUE):
        if waiting.held is not None:
            yield _finding(run, waiting, waiting.held)


def _finding(run: Analysis, waiting: Waiting, held: Held) -> Finding:
    who = rank_list(waiting.ranks) if waiting.ranks else "every rank"
    own = held.own_doing or bool(held.shares_cpus)
    return finding_on(
        run,
        waiting,
        severity=_severity(waiting, own=own),
        confidence=Confidence.LIKELY if own else Confidence.POSSIBLE,
        message=(
            f"{who} wait{'' if len(waiting.ranks) > 1 else 's'} for a free CPU, which costs "
            f"{waiting.lost_ms:.1f} ms of {waiting.step_ms:.1f} ms a step "
            f"({percent(waiting.share)}); {_why(run, held)}"
        ),
        fix=_fix(run, waiting, held),
        evidence=tuple(_evidence(run, waiting, held)),
    )


def _severity(waiting: Waiting, *, own: bool) -> Severity:
    if not own:
        return Severity.INFO
    return Severity.ERROR if waiting.share >= SHARE_ERROR else Severity.WARNING


def _why(run: Analysis, held: Held) -> str:
    if held.shares_cpus:
        return f"{rank_list(held.shares_cpus)} may use the same CPUs only, while others are free"
    threads, ranks, cpus = _asked(run)
    if held.own_doing:
        return f"{ranks} ranks ask for {threads} threads on {cpus} CPUs"
    return "the job's own threads do not explain it, so the measurement was disturbed"


def _asked(run: Analysis) -> tuple[int, int, int]:
    """Threads, ranks and CPUs of the host on which most threads share a CPU."""
    hosts: dict[str, list[RankInfo]] = {}
    for trace in run.run.ranks:
        hosts.setdefault(trace.info.host, []).append(trace.info)
    asked = [
        (sum(i.threads or 0 for i in own), len(own), max(i.cpus or 0 for i in own))
        for own in hosts.values()
    ]
    return max(asked, key=lambda each: each[0] / max(1, each[2]))


def _evidence(run: Analysis, waiting: Waiting, held: Held) -> Iterator[Evidence]:
    threads, ranks, cpus = _asked(run)
    yield Evidence("a step would be shorter without it by", waiting.lost_ms, "ms")
    yield share_evidence(waiting, QUEUE_LEAST_SHARE)
    for rank, ms in sorted(held.ms_by_rank.items(), key=lambda each: -each[1])[:4]:
        yield Evidence(f"rank {rank} waits for a CPU, per step", ms, "ms")
    yield Evidence("threads of the ranks of a host", threads)
    yield Evidence("ranks of that host", ranks)
    yield Evidence("CPUs that they may use", cpus)


def _fix(run: Analysis, waiting: Waiting, held: Held) -> str:
    _, ranks, cpus = _asked(run)
    if held.shares_cpus:
        return (
            f"Give {rank_list(held.shares_cpus)} CPUs of their own: os.sched_setaffinity, taskset, "
            "the scheduler's CPUs per task, or the variable by which a library pins threads."
            + gain_said(waiting)
        )
    if held.own_doing:
        share = max(1, cpus // max(1, ranks))
        return (
            f"Set OMP_NUM_THREADS={share} (the {cpus} CPUs divided by {ranks} ranks), or call "
            f"torch.set_num_threads({share}); count the loaders' workers as well."
            + gain_said(waiting)
        )
    return (
        f"Other processes, loader workers or more ranks ({ranks}) than CPUs ({cpus}) hold the "
        "CPUs: measure again when the host is quiet, or use fewer of them." + gain_said(waiting)
    )
