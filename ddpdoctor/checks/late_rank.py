"""DD101 late-rank: one rank reaches the collectives of a step after all the others.

What it measures
    Per step, at the collective where the last rank was furthest behind, which rank that was and
    the delay it caused: its arrival minus the second-last. Its origin is the phase in which the
    rank spent more time of its own than the median of the others since the ranks were last
    together.

Why it matters
    A collective cannot finish before its last rank arrives. All the others wait, so a single
    late rank sets the pace of the whole job. Phase times hide it: the ranks that wait do so inside
    their backward, and every rank reports the same step.

What to do
    Go to the line that is named: the sampler saw the late rank there, and the others not. Where no
    origin is named, the lateness is spread over phases, which points to the host or the device:
    compare clocks, temperature and other processes.

When it is wrong
    Two ranks that are late by the same amount hide each other: the delay caused by the last one is
    then small. Batches of uneven size make ranks late in turn; then none stands out here. A rank
    that waits for a CPU is held up by its host, not by its work: it is reported as info. So is a
    lateness of which the rank's phases do not show even half; one that is spread over phases is a
    warning at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from ddpdoctor.analysis.model import Analysis, LateArrivals, PhaseExcess, RankStats
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.events import Phase
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import percent

STEPS_NEEDED: Final = 8  # fewer, and "always last" happens by chance: 2^-7 for two ranks
ABOVE_CHANCE: Final = 0.5  # halfway from last by chance (1 / ranks) to last every time
STEP_SHARE_WARNING: Final = 0.05  # a smaller gain would drown in step-to-step noise
STEP_SHARE_ERROR: Final = 0.20
LEAST_DELAY_MS: Final = 1.0  # scheduling noise of a busy host; nobody trains for less
ORIGIN_COVERS: Final = 0.80  # share of the lateness a phase must explain to be named
PHASES_EXPLAIN: Final = 0.5  # with less of it in phases, the lateness is not of the rank's work
QUEUE_EXPLAINS: Final = 0.5  # with half of it spent waiting for a CPU, the rank's work is not slow
SAMPLES_AGREE: Final = 5  # stack samples in excess before the second witness counts

_FIXES: Final = {
    Phase.INPUT: (
        "Rank {rank} waits {excess:.1f} ms a step longer for its batches. Give its "
        "DataLoader more workers "
        "(num_workers, persistent_workers=True), or make the samples it gets as cheap as "
        "those of the "
        "others: look for slow storage, larger files or work done on this rank alone."
    ),
    Phase.FORWARD: (
        "Rank {rank} spends {excess:.1f} ms a step more in forward. Take the extra work out "
        "of forward "
        "there, or, where it runs the same code on batches of the same size, look at its device "
        "and host: clocks, temperature, other processes, CPU affinity."
    ),
    Phase.BACKWARD: (
        "Rank {rank} spends {excess:.1f} ms a step more in backward before its gradients "
        "are ready. Look "
        "at custom autograd functions and gradient hooks on it, or, where it runs the same "
        "code, at its device and host: clocks, temperature, other processes, CPU affinity."
    ),
    Phase.OPTIMIZER: (
        "Rank {rank} spends {excess:.1f} ms a step more in the optimizer's step. Look for "
        "work that only "
        "this rank does there (a hook, clipping, moving state between devices)."
    ),
    Phase.BETWEEN: (
        "Rank {rank} spends {excess:.1f} ms a step more between the phases: logging, "
        "metrics, saving, "
        "evaluation. Do it every N steps, hand it to a thread, or spread it over the ranks."
    ),
}
_ORIGINS: Final = {
    Phase.INPUT: "its input",
    Phase.FORWARD: "its forward",
    Phase.BACKWARD: "its backward",
    Phase.OPTIMIZER: "its optimizer step",
    Phase.BETWEEN: "work between its steps",
}


@trace_check("DD101", "late-rank")
def late_rank(run: Analysis) -> Iterator[Finding]:
    if run.world_size == 1:
        raise NotEnoughData("a single rank waits for nobody")
    if run.steps.counted < STEPS_NEEDED:
        raise NotEnoughData(f"{run.steps.counted} steps after warm-up; {STEPS_NEEDED} are needed")
    if not any(stats.late for stats in run.ranks):
        raise NotEnoughData("arrivals cannot be compared: ranks are missing or their clocks differ")
    for stats in run.ranks:
        if stats.late is None or stats.times is None:
            continue
        if _stands_out(stats.late, stats.times.step_ms, run.world_size):
            yield _finding(stats, stats.late, stats.times.step_ms, run)


def _stands_out(late: LateArrivals, step_ms: float, world_size: int) -> bool:
    chance = 1 / world_size
    often = chance + ABOVE_CHANCE * (1 - chance)
    least_ms = max(LEAST_DELAY_MS, STEP_SHARE_WARNING * step_ms)
    return (
        late.last_share >= often
        and late.caused_delay_ms >= least_ms
        and late.typical_delay_ms >= least_ms
    )


class Origin(Enum):
    """What is known of where a lateness comes from."""

    SEEN = "a phase covers it, and stack samples agree"
    NAMED = "a phase covers it"
    SPREAD = "phases together explain it"
    UNKNOWN = "most of it is in no phase of the rank"
    STARVED = "the rank is ready to run and has no CPU"


def _origin(late: LateArrivals) -> Origin:
    top = late.excesses[0]
    if late.run_queue_ms >= QUEUE_EXPLAINS * late.lateness_ms:
        return Origin.STARVED
    if top.coverage >= ORIGIN_COVERS:
        return Origin.SEEN if top.samples >= SAMPLES_AGREE else Origin.NAMED
    explained_ms = sum(max(0.0, excess.excess_ms) for excess in late.excesses)
    return Origin.SPREAD if explained_ms >= PHASES_EXPLAIN * late.lateness_ms else Origin.UNKNOWN


def _said(origin: Origin, late: LateArrivals) -> str:
    if origin is Origin.STARVED:
        return f"for {late.run_queue_ms:.1f} ms of it the rank is ready to run and has no CPU"
    if origin in (Origin.SEEN, Origin.NAMED):
        return f"it comes from {_ORIGINS[late.excesses[0].phase]}"
    if origin is Origin.SPREAD:
        return "no single phase explains it"
    return "its phases do not explain even half of it"


def _finding(stats: RankStats, late: LateArrivals, step_ms: float, run: Analysis) -> Finding:
    step_share = late.caused_delay_ms / step_ms
    top = late.excesses[0]
    origin = _origin(late)
    seen, starved = origin is Origin.SEEN, origin is Origin.STARVED
    where = (top.where,) if seen and top.where is not None else ()
    return Finding(
        severity=_severity(step_share, origin),
        confidence=_confidence(origin),
        message=(
            f"rank {stats.rank} on {stats.host} arrives last in {percent(late.last_share)} "
            f"of steps, and "
            f"the job waits {late.caused_delay_ms:.1f} ms of {step_ms:.1f} ms a "
            f"step for it; {_said(origin, late)}"
        ),
        fix=_fix_of_host(stats) if starved else _fix(stats, late, step_ms),
        culprits=(stats.rank,),
        victims=tuple(other.rank for other in run.ranks if other.rank != stats.rank),
        hosts=(stats.host,),
        steps=((run.steps.first_sync, run.steps.last_sync),),
        evidence=tuple(_evidence(late, top, step_share)),
        lost_s=late.caused_delay_ms * run.steps.counted / 1e3,
        where=where,
    )


def _severity(step_share: float, origin: Origin) -> Severity:
    """A rank that other processes keep from the CPU is a disturbed measurement, not a slow rank.

    So is, on a busy host, a lateness that the rank's own phases do not show.
    """
    if origin in (Origin.STARVED, Origin.UNKNOWN):
        return Severity.INFO
    if origin is Origin.SPREAD:
        return Severity.WARNING
    return Severity.ERROR if step_share >= STEP_SHARE_ERROR else Severity.WARNING


def _fix_of_host(stats: RankStats) -> str:
    return (
        f"Other processes or too many threads hold the CPUs of {stats.host}: measure again "
        f"when it is "
        "quiet, use fewer threads a rank (OMP_NUM_THREADS), or look at the CPUs that rank "
        f"{stats.rank} may use (taskset -p)."
    )


def _confidence(origin: Origin) -> Confidence:
    if origin is Origin.SEEN:
        return Confidence.CERTAIN
    return Confidence.LIKELY if origin is Origin.NAMED else Confidence.POSSIBLE


def _evidence(late: LateArrivals, top: PhaseExcess, step_share: float) -> Iterator[Evidence]:
    yield Evidence("steps in which it arrived last", 100 * late.last_share, "%")
    yield Evidence("delay it caused per step", late.caused_delay_ms, "ms")
    yield Evidence("share of the step", 100 * step_share, "%", 100 * STEP_SHARE_WARNING)
    label = top.phase.label
    yield Evidence(f"more {label} time than the others", top.excess_ms, "ms")
    yield Evidence(
        f"share of its lateness that {label} covers", 100 * top.coverage, "%", 100 * ORIGIN_COVERS
    )
    yield Evidence("waiting for a CPU, more than the others", late.run_queue_ms, "ms")
    yield Evidence(f"stack samples in {label} beyond the others'", top.samples, "", SAMPLES_AGREE)


def _fix(stats: RankStats, late: LateArrivals, step_ms: float) -> str:
    top = late.excesses[0]
    after_ms = step_ms - late.caused_delay_ms
    gain = f" A step would take {after_ms:.1f} ms instead of {step_ms:.1f} ms."
    if top.coverage >= ORIGIN_COVERS:
        return _FIXES[top.phase].format(rank=stats.rank, excess=top.excess_ms) + gain
    parts = ", ".join(f"{e.phase.label} {e.excess_ms:+.1f} ms" for e in late.excesses[:3])
    return (
        f"Not known which phase: rank {stats.rank} differs from the others by {parts}. "
        f"Measure next: run the "
        f"same script with two ranks exchanged between hosts or devices; if the lateness stays "
        f"on {stats.host}, it is the machine, and if it goes with the rank, its data or code."
        + gain
    )
