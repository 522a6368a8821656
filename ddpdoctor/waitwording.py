"""Words, evidence and fixes that the checks on waiting share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.waitmodel import (
    ORIGIN_COVERS,
    SAMPLES_AGREE,
    Lateness,
    Origin,
    Waiting,
    WaitKind,
)
from ddpdoctor.events import Phase
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity

STEP_SHARE_WARNING: Final = 0.05  # a smaller gain would drown in step-to-step noise
STEP_SHARE_ERROR: Final = 0.20
DISTURBANCE_S: Final = 30.0  # as long as what else runs on a host may hold up a rank in passing

_PLACES: Final = {
    Phase.INPUT: "its input",
    Phase.FORWARD: "its forward",
    Phase.BACKWARD: "its backward",
    Phase.OPTIMIZER: "its optimizer step",
    Phase.BETWEEN: "work between its steps",
}
_FIXES: Final = {
    Phase.INPUT: (
        "{who} {waits} {excess:.1f} ms a step longer for {its} batches. Give the DataLoader more "
        "workers (num_workers, persistent_workers=True), or make the samples as cheap as "
        "elsewhere: look for slow storage, larger files or work done there alone."
    ),
    Phase.FORWARD: (
        "{who} {spends} {excess:.1f} ms a step more in forward. Take the extra work out of "
        "forward there, or, where the same code runs on batches of the same size, look at "
        "device and host: clocks, temperature, other processes, CPU affinity."
    ),
    Phase.BACKWARD: (
        "{who} {spends} {excess:.1f} ms a step more in backward before the gradients are ready. "
        "Look at custom autograd functions and gradient hooks, or, where the same code runs, "
        "at device and host: clocks, temperature, other processes, CPU affinity."
    ),
    Phase.OPTIMIZER: (
        "{who} {spends} {excess:.1f} ms a step more in the optimizer's step. Look for work that "
        "is done only there (a hook, clipping, moving state between devices)."
    ),
    Phase.BETWEEN: (
        "{who} {spends} {excess:.1f} ms a step more between the phases: logging, metrics, "
        "saving, evaluation. Do it every N steps, hand it to a thread, or spread it over the "
        "ranks."
    ),
}
_UNCONFIRMED: Final = (
    " Only its times say so, and no stack samples: put ddpdoctor.span around parts of it to see "
    "which one it is."
)


def found(run: Analysis, *kinds: WaitKind) -> Iterator[Waiting]:
    return (waiting for waiting in run.waiting if waiting.kind in kinds)


def finding_on(  # noqa: PLR0913  one value per field of the finding
    run: Analysis,
    waiting: Waiting,
    *,
    severity: Severity,
    confidence: Confidence,
    message: str,
    fix: str,
    evidence: tuple[Evidence, ...],
    where: tuple[Location, ...] = (),
) -> Finding:
    """With whom and what it concerns, and what it costs."""
    return Finding(
        severity=severity,
        confidence=confidence,
        message=message,
        fix=fix,
        culprits=waiting.ranks,
        victims=others(run, waiting),
        hosts=hosts_of(run, waiting),
        steps=steps_of(run, waiting),
        evidence=evidence,
        lost_s=lost_s(run, waiting),
        where=where,
    )


def place_of(phase: Phase) -> str:
    """`forward`, `work between the steps`."""
    return "work between the steps" if phase is Phase.BETWEEN else phase.label


def origin_said(lateness: Lateness) -> str:
    """Where a lateness comes from, as far as that is known."""
    origin = lateness.origin
    if origin in (Origin.SEEN, Origin.NAMED):
        return f"it comes from {_PLACES[lateness.excesses[0].phase]}"
    if origin is Origin.SPREAD:
        return "no single phase explains it"
    return "its phases do not explain even half of it"


def fix_of_phase(lateness: Lateness, who: str, *, several: bool = False) -> str:
    """For a lateness that its largest phase explains."""
    top = lateness.excesses[0]
    words = {"waits": "wait", "spends": "spend", "its": "their"} if several else {
        "waits": "waits", "spends": "spends", "its": "its"
    }  # fmt: skip
    fix = _FIXES[top.phase].format(who=who, excess=top.excess_ms, **words)
    return fix if lateness.origin is Origin.SEEN else fix + _UNCONFIRMED


def differences(lateness: Lateness) -> str:
    """`forward +10.0 ms, backward +9.5 ms, input +0.1 ms`."""
    return ", ".join(f"{e.phase.label} {e.excess_ms:+.1f} ms" for e in lateness.excesses[:3])


def gain_said(waiting: Waiting) -> str:
    after_ms = max(0.0, waiting.step_ms - waiting.lost_ms)
    return f" A step would take {after_ms:.1f} ms instead of {waiting.step_ms:.1f} ms."


def lost_s(run: Analysis, waiting: Waiting) -> float:
    return waiting.lost_ms * run.steps.counted / 1e3


def steps_of(run: Analysis, waiting: Waiting) -> tuple[tuple[int, int], ...]:
    return ((waiting.since or run.steps.first_sync, run.steps.last_sync),)


def others(run: Analysis, waiting: Waiting) -> tuple[int, ...]:
    """The ranks that wait; none where no rank is to blame alone."""
    if not waiting.ranks:
        return ()
    every = sorted(stats.rank for stats in run.ranks)
    return tuple(rank for rank in every if rank not in waiting.ranks)


def hosts_of(run: Analysis, waiting: Waiting) -> tuple[str, ...]:
    chosen = waiting.ranks or tuple(stats.rank for stats in run.ranks)
    return tuple(sorted({stats.host for stats in run.ranks if stats.rank in chosen}))


def host_of(run: Analysis, rank: int) -> str:
    return next(stats.host for stats in run.ranks if stats.rank == rank)


def lines_seen(lateness: Lateness) -> tuple[Location, ...]:
    """The user's line, where samples of the stacks agree with the times."""
    top = lateness.excesses[0]
    return (top.where,) if lateness.origin is Origin.SEEN and top.where is not None else ()


def confidence_of(lateness: Lateness) -> Confidence:
    if lateness.origin is Origin.SEEN:
        return Confidence.CERTAIN
    return Confidence.LIKELY if lateness.origin is Origin.NAMED else Confidence.POSSIBLE


def severity_of(run: Analysis, waiting: Waiting) -> Severity:
    """By what it costs; a lateness that no phase covers is a hint, or a warning at most.

    Where all phases are somewhat slower, a disturbed host is as likely, for as long as that lasts.
    """
    lateness = waiting.lateness
    if lateness is not None and lateness.origin is Origin.UNKNOWN:
        return Severity.INFO
    if lateness is not None and lateness.origin is Origin.SPREAD:
        lasts = waiting.step_ms * run.steps.counted / 1e3 >= DISTURBANCE_S
        is_large = waiting.share >= STEP_SHARE_ERROR
        return Severity.WARNING if lasts or is_large else Severity.INFO
    return by_share(waiting)


def by_share(waiting: Waiting) -> Severity:
    if waiting.share >= STEP_SHARE_ERROR:
        return Severity.ERROR
    return Severity.WARNING if waiting.share >= STEP_SHARE_WARNING else Severity.INFO


def share_evidence(waiting: Waiting, threshold: float = STEP_SHARE_WARNING) -> Evidence:
    return Evidence("share of the step", 100 * waiting.share, "%", 100 * threshold)


def origin_evidence(lateness: Lateness) -> Iterator[Evidence]:
    top = lateness.excesses[0]
    label = top.phase.label
    yield Evidence(f"more {label} time than the others", top.excess_ms, "ms")
    yield Evidence(
        f"share of its lateness that {label} covers", 100 * top.coverage, "%", 100 * ORIGIN_COVERS
    )
    yield Evidence(f"stack samples in {label} beyond the others'", top.samples, "", SAMPLES_AGREE)
