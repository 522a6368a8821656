"""DD913 never-arrived: the record ends in a collective that a rank never came to.

What it measures
    In a record that nobody closed: the first collective of a group in which ranks still stand, and
    which ranks of the group never issued it or failed in it. A rank that stood still for five
    seconds has noted where. Where the collective's timeout ended the waiting ranks: where SIGTERM
    then found the others. Where Python's lock was kept: the stacks that were written in C.

Why it matters
    A collective waits for all of its ranks, so the ranks that stand in it do so for ever. Their
    stacks are the victims'; the cause is where the missing rank was.

What to do
    Look at the line that is named for the missing rank. While the job still hangs, `ddpdoctor
    diagnose` on its host tells more.

When it is wrong
    A job that is killed in mid-step ends in such a collective, too. So without a rank that stood
    still for five seconds this is only info, as a job that still runs is.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.analysis.model import Analysis, StuckCollective, WaitedInVain
from ddpdoctor.analysis.uneven import out_of_batches
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.events import Site, Stall
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.lastlook import is_understood, last_look
from ddpdoctor.wording import rank_list


@trace_check("DD913", "never-arrived")
def never_arrived(run: Analysis) -> Iterator[Finding]:
    if len(run.run.ranks) < run.world_size:
        raise NotEnoughData("ranks are missing from the record, so who arrived is not known")
    stalls = {trace.info.rank: trace.stall for trace in run.run.ranks if trace.stall is not None}
    if run.early_end is not None:
        return  # DD901 names the cause
    if run.mixed or is_understood(last_look(run.run)):
        return  # the stacks that the ranks noted tell DD902, DD903, DD904, ... more
    out = out_of_batches(run)  # DD304 says of these why they do not come
    if run.in_vain is not None:
        if not out.issuperset(run.in_vain.missing or run.in_vain.waiting):
            yield _gave_up(run.in_vain)
        return
    for stuck in run.stuck:
        if stuck.missing and out.issuperset(stuck.missing) and not stuck.failed:
            continue
        yield _finding(run, stuck, stalls)


def _finding(run: Analysis, stuck: StuckCollective, stalls: dict[int, Stall]) -> Finding:
    culprits = stuck.failed or stuck.missing
    did = "failed in it" if stuck.failed else "never came to it"
    hangs = any(rank in stalls for rank in stuck.waiting)
    where = tuple(
        Location(rank, site.file, site.line, site.function)
        for rank, site in _last_seen(run, stalls).items()
        if rank in culprits
    )
    stand = "stands" if len(stuck.waiting) == 1 else "stand"
    return Finding(
        severity=Severity.ERROR if hangs else Severity.INFO,
        confidence=Confidence.CERTAIN if hangs and where else Confidence.POSSIBLE,
        message=(
            f"{rank_list(stuck.waiting)} {stand} in {stuck.op} (number {stuck.seq} of its group), "
            f"and {rank_list(culprits)} {did}"
        ),
        fix=_fix(culprits, hangs=hangs),
        culprits=culprits,
        victims=stuck.waiting,
        steps=((run.steps.last_sync, run.steps.last_sync),) if run.steps.counted else (),
        evidence=tuple(
            Evidence(f"rank {rank} recorded nothing for", stall.seconds, "s")
            for rank, stall in sorted(stalls.items())
        ),
        where=where,
    )


def _last_seen(run: Analysis, stalls: dict[int, Stall]) -> dict[int, Site]:
    """Where ranks stood: as they noted it, else as it was written while Python could not run."""
    seen = {rank: stall.site for rank, stall in stalls.items() if stall.site is not None}
    for trace in run.run.ranks:
        if trace.last_stacks.stuck:
            seen.setdefault(trace.info.rank, trace.last_stacks.stuck[-1][0])
    return dict(sorted(seen.items()))


def _gave_up(in_vain: WaitedInVain) -> Finding:
    place = in_vain.where[0]
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"{rank_list(in_vain.waiting)} waited in a collective until its timeout, and "
            f"{rank_list(in_vain.missing)} never came to it: SIGTERM found rank {place.rank} at "
            f"{place.file.rsplit('/', 1)[-1]}:{place.line} in {place.function}"
        ),
        fix=_fix(in_vain.missing, hangs=True),
        culprits=in_vain.missing,
        victims=in_vain.waiting,
        evidence=(Evidence(f"rank {in_vain.waiting[0]}", in_vain.said),),
        where=in_vain.where,
    )


def _fix(culprits: tuple[int, ...], *, hangs: bool) -> str:
    if not hangs:
        return (
            "Nothing, if the job was killed in mid-step or still runs. If it hangs, run `ddpdoctor "
            "diagnose` on its host."
        )
    return (
        f"See what {rank_list(culprits)} waited for there. Every collective must be reached by all "
        "ranks of its group: equally many steps on each, and none behind a condition on the rank."
    )
