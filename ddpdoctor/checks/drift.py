"""DD109 drift: steps take longer and longer, or longer from some step on.

What it measures
    Medians over blocks of steps: whether they rise all along, or lie on a higher level from a
    point on to the end. For the step of the job, with waiting for a CPU and collections taken out,
    and for the delay that each rank causes. Of the terms of a step the one that grows is named if
    it covers four fifths of the growth.

Why it matters
    A training that loses a tenth of a percent a step does not look slow to anybody; after a day it
    runs at half its speed. A mean over the run says nothing of it.

What to do
    Find what grows: a list that is kept and gone through each step, a log that is read again, a
    cache without a limit, memory that is swapped. Where one rank computes more slowly from a point
    on, look at its clocks and temperature, and who came onto its host.

When it is wrong
    Batches that become longer on purpose are told by their size and not reported. Where all ranks
    compute more slowly together, ranks wait for a CPU more than before, or no term of a rank's step
    covers what it comes later by, the machine is as likely as the script, and it is info.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.shapes import DRIFT_STEPS, Rise
from ddpdoctor.analysis.together import TRANSFER
from ddpdoctor.analysis.waitmodel import Lateness, Waiting, WaitKind
from ddpdoctor.checks import need_steps, trace_check
from ddpdoctor.events import Phase
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.waitwording import (
    by_share,
    confidence_of,
    differences,
    finding_on,
    found,
    gain_said,
    lines_seen,
    share_evidence,
)

RISES_STEADILY: Final = 0.8  # of Kendall's tau: a machine that is disturbed goes up and down
_COMPUTE: Final = (Phase.FORWARD.label, Phase.BACKWARD.label)


@trace_check("DD109", "drift")
def drift(run: Analysis) -> Iterator[Finding]:
    need_steps(run, DRIFT_STEPS)
    for waiting in found(run, WaitKind.DRIFT):
        if waiting.lateness is not None and waiting.rise is not None:
            yield _finding(run, waiting, waiting.lateness, waiting.rise)


def _finding(run: Analysis, waiting: Waiting, lateness: Lateness, rise: Rise) -> Finding:
    is_hint = _may_be_the_machine(run, waiting, rise)
    return finding_on(
        run,
        waiting,
        severity=Severity.INFO if is_hint else by_share(waiting),
        confidence=_confidence(waiting, lateness, is_hint=is_hint),
        message=_message(waiting, rise),
        fix=_fix(waiting, lateness),
        evidence=tuple(_evidence(waiting, lateness, rise)),
        where=lines_seen(lateness) if waiting.term is not None else (),
    )


def _confidence(waiting: Waiting, lateness: Lateness, *, is_hint: bool) -> Confidence:
    if is_hint:
        return Confidence.POSSIBLE
    return confidence_of(lateness) if waiting.ranks else Confidence.LIKELY


def _may_be_the_machine(run: Analysis, waiting: Waiting, rise: Rise) -> bool:
    if waiting.disturbed or waiting.term is None:
        return True
    if waiting.ranks:
        return False
    if waiting.term == TRANSFER:  # gloo on one host moves bytes by the CPU
        networks = {trace.info.network_id for trace in run.run.ranks}
        return run.run.info.backend == "gloo" and len(networks) == 1
    return waiting.term in _COMPUTE and rise.tau < RISES_STEADILY


def _message(waiting: Waiting, rise: Rise) -> str:
    how = f"from step {waiting.since} on" if waiting.since is not None else "little by little"
    term = f", in {waiting.term}" if waiting.term is not None else ""
    if waiting.ranks:
        return (
            f"rank {waiting.ranks[0]} comes later {how}{term}: the others waited "
            f"{rise.before:.1f} ms a step for it, and wait {rise.after:.1f} ms"
        )
    return (
        f"steps take longer {how}, on all ranks{term}: {rise.before:.1f} ms before, "
        f"{rise.after:.1f} ms after"
    )


def _evidence(waiting: Waiting, lateness: Lateness, rise: Rise) -> Iterator[Evidence]:
    yield Evidence("before", rise.before, "ms")
    yield Evidence("after", rise.after, "ms")
    yield Evidence("rises all along (Kendall's tau of 20 blocks)", rise.tau)
    yield share_evidence(waiting)
    yield Evidence("what grows", differences(lateness))
    yield Evidence("more waiting for a CPU meanwhile", "yes" if waiting.disturbed else "no")


def _fix(waiting: Waiting, lateness: Lateness) -> str:
    gain = gain_said(waiting)
    if waiting.ranks and waiting.term in _COMPUTE:
        return (
            f"Rank {waiting.ranks[0]} computes more slowly than it did: look at the clocks and the "
            "temperature of its device, and at what else runs on its host." + gain
        )
    if waiting.term == TRANSFER:
        return (
            "Transfers become slower: look at what else uses the network, and at the sizes of "
            "what is reduced." + gain
        )
    if waiting.term is None:
        return (
            f"Not known which term grows ({differences(lateness)}). Measure next: clocks, "
            "temperature and other processes over the same time." + gain
        )
    place = f"in {waiting.term}" if waiting.term != Phase.BETWEEN.label else "between the steps"
    return (
        f"Look {place} for what grows with the steps: a list that is kept and gone through again "
        "(losses, outputs with their graphs), a file that is read anew, a cache without a limit."
        + gain
    )
