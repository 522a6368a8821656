"""DD101 late-rank: one rank reaches the collectives of a step after all the others.

What it measures
    Per step, at the collective where the last rank was furthest behind, which rank that was and
    the delay it caused: its arrival minus the second-last. Its origin is the phase in which the
    rank spent more time of its own than the median of the others since the ranks were last
    together. Steps in which it collected garbage or waited for a CPU are not counted: DD105 to
    DD107 look at these.

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
    then small. Ranks that are late in turn are DD102, a whole host is DD103. A lateness of which
    the rank's phases do not show even half is info; one that is spread over phases is a warning at
    most, and info where it costs less than a fifth of the step in a recording of less than half a
    minute, since a host may be disturbed for as long. Of a rank that was not recorded nothing is
    known: then it is said as possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ddpdoctor.analysis.backward import BackwardPlace, place_in_backward
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.waitjob import STEPS_NEEDED
from ddpdoctor.analysis.waitmodel import Lateness, Origin, Waiting, WaitKind
from ddpdoctor.checks import NotEnoughData, need_steps, trace_check
from ddpdoctor.events import Phase
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.waitwording import (
    confidence_of,
    differences,
    finding_on,
    fix_of_phase,
    found,
    gain_said,
    host_of,
    lines_seen,
    origin_evidence,
    origin_said,
    severity_of,
    share_evidence,
)
from ddpdoctor.wording import percent

DISAGREES: Final = 0.8  # of the steps another rank has most to do: then clocks may be wrong
LARGER_BATCHES: Final = 1.1  # a tenth more work does not go unseen in a step's time


@trace_check("DD101", "late-rank")
def late_rank(run: Analysis) -> Iterator[Finding]:
    judge_arrivals(run)
    for waiting in found(run, WaitKind.LATE, WaitKind.NOW_AND_THEN):
        if waiting.lateness is not None and not _may_be_a_missing_rank(run, waiting):
            finding = _finding(run, waiting, waiting.lateness)
            yield finding if run.has_all_ranks else _of_those_recorded(run, finding)


def judge_arrivals(run: Analysis) -> None:
    """Raises NotEnoughData where nothing can be said of who arrives last."""
    if run.world_size == 1:
        raise NotEnoughData("a single rank waits for nobody")
    need_steps(run, STEPS_NEEDED)
    if not any(stats.late for stats in run.ranks):
        raise NotEnoughData(_not_comparable(run))


def _not_comparable(run: Analysis) -> str:
    reason = "arrivals cannot be compared: ranks are missing or their clocks differ"
    edge = run.frontier
    if edge is None or edge.share < 0.5:
        return reason
    return (
        f"{reason}; by their own times alone rank {edge.rank} has most to do in "
        f"{percent(edge.share)} of steps, {edge.excess_ms:.1f} ms more than the others"
    )


def _may_be_a_missing_rank(run: Analysis, waiting: Waiting) -> bool:
    """Whether the last of the recorded ranks itself stands waiting for as long."""
    if run.has_all_ranks:
        return False
    stands = [s.times.blocked_ms for s in run.ranks if s.times and s.rank in waiting.ranks]
    return min(stands, default=0.0) >= waiting.lost_ms


def _of_those_recorded(run: Analysis, finding: Finding) -> Finding:
    among = f" (of {len(run.ranks)} ranks of {run.world_size} that were recorded)"
    return replace(
        finding,
        severity=min(finding.severity, Severity.WARNING),
        confidence=Confidence.POSSIBLE,
        message=finding.message + among,
    )


def _finding(run: Analysis, waiting: Waiting, lateness: Lateness) -> Finding:
    (rank,) = waiting.ranks
    at_times = waiting.kind is WaitKind.NOW_AND_THEN
    place = _place(run, waiting, lateness)
    return finding_on(
        run,
        waiting,
        severity=Severity.INFO if at_times else severity_of(run, waiting),
        confidence=_confidence(run, waiting, lateness),
        message=(
            f"rank {rank} on {host_of(run, rank)} arrives last {_how_often(waiting, lateness)}, "
            f"and the job waits {waiting.lost_ms:.1f} ms of {waiting.step_ms:.1f} ms a step for "
            f"it; {origin_said(lateness)}{', ' + place.said() if place else ''}"
        ),
        fix=_fix(run, waiting, lateness),
        evidence=tuple(_evidence(run, waiting, lateness, place)),
        where=lines_seen(lateness),
    )


def _confidence(run: Analysis, waiting: Waiting, lateness: Lateness) -> Confidence:
    """Less where own times alone, which compare no clocks, name another rank."""
    edge = run.frontier
    other = edge is not None and edge.rank not in waiting.ranks and edge.share >= DISAGREES
    if other or waiting.kind is WaitKind.NOW_AND_THEN:
        return Confidence.POSSIBLE
    return confidence_of(lateness)


def _how_often(waiting: Waiting, lateness: Lateness) -> str:
    if waiting.kind is WaitKind.NOW_AND_THEN:
        return f"by {lateness.late_ms:.1f} ms in {waiting.events} steps, at no regular interval"
    return f"in {percent(lateness.last_share)} of steps"


def _place(run: Analysis, waiting: Waiting, lateness: Lateness) -> BackwardPlace | None:
    """Where in backward, if it comes from there."""
    is_named = lateness.origin in (Origin.SEEN, Origin.NAMED)
    if not is_named or lateness.excesses[0].phase is not Phase.BACKWARD:
        return None
    return place_in_backward(run, waiting.ranks[0])


def _evidence(
    run: Analysis, waiting: Waiting, lateness: Lateness, place: BackwardPlace | None
) -> Iterator[Evidence]:
    yield Evidence("steps in which it arrived last", 100 * lateness.last_share, "%")
    yield Evidence("delay it caused per step", waiting.lost_ms, "ms")
    yield share_evidence(waiting)
    yield from origin_evidence(lateness)
    if place is not None:
        yield Evidence("its backward falls behind", place.said(), "")
        yield Evidence("later there by", place.late_ms, "ms")
    if run.frontier is not None:
        rank, share = run.frontier.rank, 100 * run.frontier.share
        yield Evidence(f"steps in which rank {rank} has most to do, by own times alone", share, "%")
    if waiting.size_ratio is not None:
        yield Evidence("its batches against the others'", waiting.size_ratio, "times")
    yield Evidence("ranks differ in waiting for a CPU by", waiting.noise_ms, "ms")


def _fix(run: Analysis, waiting: Waiting, lateness: Lateness) -> str:
    (rank,) = waiting.ranks
    ratio = waiting.size_ratio
    larger = ""
    if ratio is not None and ratio >= LARGER_BATCHES:
        larger = f" Its batches are {ratio:.1f} times as large as the others': make them equal."
    if lateness.origin in (Origin.SEEN, Origin.NAMED):
        return fix_of_phase(lateness, f"Rank {rank}") + larger + gain_said(waiting)
    return (
        f"Not known which phase: rank {rank} differs from the others by {differences(lateness)}. "
        f"Measure next: run the same script with two ranks exchanged between hosts or devices; "
        f"if the lateness stays on {host_of(run, rank)}, it is the machine, and if it goes with "
        f"the rank, its data or code.{larger}{gain_said(waiting)}"
    )
