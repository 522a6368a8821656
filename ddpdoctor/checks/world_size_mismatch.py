"""DD403 world-size-mismatch: processes disagree on how many ranks there are.

What it measures
    RANK, WORLD_SIZE and LOCAL_WORLD_SIZE of every process, held against each other and against the
    tasks that Slurm started; in a recorded run, and under `ddpdoctor run` for each call of
    init_process_group, the ranks of the process group against those that were started.

Why it matters
    A rendezvous for more ranks than were started never ends. One for fewer lets some ranks train
    alone: with WORLD_SIZE=1 each trains a model of its own, without any error.

What to do
    Let one launcher set the numbers. Under Slurm either one task a rank (--ntasks-per-node as many
    as GPUs), or one task a node that starts torchrun.

When it is wrong
    A batch script that starts several jobs within one allocation has fewer ranks than tasks. A
    launcher whose processes train apart on purpose, each a group of its own, is no fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.checks import NotEnoughData, launch_check, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.launchfacts import MOST_RANKS, LaunchFacts, Process, process_of
from ddpdoctor.wording import SHOWN, rank_list

if TYPE_CHECKING:  # a launch check loads no pandas
    from ddpdoctor.analysis.model import Analysis

_FIX = (
    "Let one launcher set RANK, WORLD_SIZE and LOCAL_RANK on all ranks: torchrun, or srun with one "
    "task a rank (--ntasks-per-node)."
)
_AS_STARTED = (
    "Leave rank and world_size out of init_process_group, so that it takes RANK and WORLD_SIZE of "
    "the launcher; or start as many processes (--nproc-per-node, --ntasks-per-node)."
)


@launch_check("DD403", "world-size-mismatch")
def world_size_mismatch(launch: LaunchFacts) -> Iterator[Finding]:
    told = [p for p in launch.processes if p.rank is not None or p.world_size or p.problems]
    if not told:
        raise NotEnoughData("no launch variables are set here")
    sizes: dict[int, list[Process]] = defaultdict(list)
    for process in told:
        if process.world_size is not None:
            sizes[process.world_size].append(process)
    if len(sizes) > 1:
        yield _disagreement(sizes)
    apart = [*_smaller_than_started(told), *_larger_than_started(launch)]
    yield from apart
    problems: dict[str, list[Process]] = defaultdict(list)
    for process in () if apart else told:
        for problem in process.problems:
            problems[problem].append(process)
    if problems:
        yield _impossible(problems)


@trace_check("DD403", "world-size-mismatch")
def world_size_mismatch_in_record(run: Analysis) -> Iterator[Finding]:
    yield from _smaller_than_started([process_of(trace.info) for trace in run.run.ranks])


def _smaller_than_started(processes: Sequence[Process]) -> Iterator[Finding]:
    """Groups of fewer ranks than the launcher started processes: these train apart."""
    small = [p for p in processes if p.world_size and p.world_size < (p.started or 0)]
    if not small:
        return
    asked, started = small[0].world_size, small[0].started
    alone = "each rank trains alone" if asked == 1 else "ranks train in groups that do not meet"
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"the process group is of {asked} rank{'s' * (asked != 1)}, and the launcher started "
            f"{started} (WORLD_SIZE={started}): {alone}"
        ),
        fix=_AS_STARTED,
        evidence=_asked(small),
    )


def _larger_than_started(launch: LaunchFacts) -> Iterator[Finding]:
    """A group that was not complete, of more ranks than the launcher started processes."""
    large = [p for p in launch.apart if (p.world_size or 0) > (p.started or MOST_RANKS)]
    if not large or not launch.missing:
        return
    asked, started = large[0].world_size, large[0].started
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=(
            f"init_process_group waits for {asked} ranks, and the launcher started {started} "
            f"(WORLD_SIZE={started}): nobody is {rank_list(launch.missing)}"
        ),
        fix=_AS_STARTED,
        victims=_ranks(large),
        evidence=_asked(large),
    )


def _asked(processes: Sequence[Process]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(process.label, f"world_size={process.world_size}, WORLD_SIZE={process.started}")
        for process in processes[:SHOWN]
    )


def _ranks(processes: list[Process]) -> tuple[int, ...]:
    return tuple(sorted({process.rank for process in processes if process.rank is not None}))


def _disagreement(sizes: dict[int, list[Process]]) -> Finding:
    usual = max(sizes, key=lambda size: len(sizes[size]))
    few = [process for size, own in sizes.items() if size != usual for process in own]
    clear = 2 * len(sizes[usual]) > sum(len(own) for own in sizes.values())
    said = "; ".join(
        f"{size} on {rank_list(_ranks(own)) if _ranks(own) else own[0].host}"
        for size, own in sizes.items()
    )
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=f"the ranks differ in WORLD_SIZE: {said}",
        fix=_FIX,
        culprits=_ranks(few) if clear else _ranks([p for own in sizes.values() for p in own]),
    )


def _impossible(problems: dict[str, list[Process]]) -> Finding:
    first, *others = problems
    more = f" (and {len(others)} more)" if others else ""
    owners = [process for own in problems.values() for process in own]
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=f"the launch variables of {owners[0].label} cannot be right: {first}{more}",
        fix=_FIX,
        culprits=_ranks(owners),
        evidence=tuple(
            Evidence(", ".join(process.label for process in own[:4]), problem)
            for problem, own in problems.items()
        ),
    )
