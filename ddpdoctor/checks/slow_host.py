"""DD103 slow-host: all ranks of one of several hosts arrive after all the others.

What it measures
    Per step, whether the last to arrive are the ranks of one host, all of them and no other, and
    by how much the last of them comes after the last of the other hosts. The phases in which they
    spend more than the median of the other hosts' ranks say where.

Why it matters
    Its ranks hide each other: none of them is far behind the second-last. Blaming one of them, or
    its code, would send you the wrong way.

What to do
    Take the host out, or exchange it with another one: if the lateness stays, it is not the
    machine. Compare clocks, temperature, power caps, other tenants; where only input is
    longer, its storage.

When it is wrong
    A host with a single rank cannot be told from that rank: DD101 names it then. Ranks that are
    placed by host, such as those with the longest samples, look like a slow host, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.waitmodel import Lateness, Origin, Waiting, WaitKind
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.checks.late_rank import judge_arrivals
from ddpdoctor.events import Phase
from ddpdoctor.findings import Confidence, Evidence, Finding
from ddpdoctor.waitwording import (
    by_share,
    differences,
    finding_on,
    found,
    gain_said,
    host_of,
    lines_seen,
    origin_evidence,
    share_evidence,
)
from ddpdoctor.wording import percent, rank_list


@trace_check("DD103", "slow-host")
def slow_host(run: Analysis) -> Iterator[Finding]:
    judge_arrivals(run)
    if len({stats.host for stats in run.ranks}) < 2:
        raise NotEnoughData("all ranks are on one host")
    for waiting in found(run, WaitKind.HOST):
        if waiting.lateness is not None:
            yield _finding(run, waiting, waiting.lateness)


def _finding(run: Analysis, waiting: Waiting, lateness: Lateness) -> Finding:
    host = host_of(run, waiting.ranks[0])
    explained = lateness.origin is not Origin.UNKNOWN and run.has_all_ranks
    return finding_on(
        run,
        waiting,
        severity=by_share(waiting),
        confidence=Confidence.LIKELY if explained else Confidence.POSSIBLE,
        message=(
            f"all ranks of {host} ({rank_list(waiting.ranks)}) arrive after those of the other "
            f"hosts in {percent(lateness.last_share)} of steps, and the job waits "
            f"{waiting.lost_ms:.1f} ms of {waiting.step_ms:.1f} ms a step for them"
        ),
        fix=_fix(host, waiting, lateness),
        evidence=tuple(_evidence(waiting, lateness)),
        where=lines_seen(lateness),
    )


def _evidence(waiting: Waiting, lateness: Lateness) -> Iterator[Evidence]:
    yield Evidence("steps in which they all arrived last", 100 * lateness.last_share, "%")
    yield Evidence("delay they caused per step", waiting.lost_ms, "ms")
    yield share_evidence(waiting)
    yield from origin_evidence(lateness)


def _fix(host: str, waiting: Waiting, lateness: Lateness) -> str:
    top = lateness.excesses[0]
    if top.phase is Phase.INPUT and lateness.origin in (Origin.SEEN, Origin.NAMED):
        what = f"only input is longer there ({top.excess_ms:+.1f} ms): look at its storage first"
    else:
        what = (
            f"its ranks differ by {differences(lateness)}: compare clocks, temperature, power "
            "caps and other processes with another host"
        )
    return (
        f"Take {host} out of the job or exchange it; {what}. If another host is late in its "
        f"place, the cause is in the ranks' data or code.{gain_said(waiting)}"
    )
