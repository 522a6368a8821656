"""DD403 world-size-mismatch: processes disagree on how many ranks there are.

What it measures
    RANK, WORLD_SIZE and LOCAL_WORLD_SIZE of every process, held against each other, against the
    tasks that Slurm started and against the ranks of the process group.

Why it matters
    A rendezvous for more ranks than were started never ends. One for fewer lets some ranks train
    alone: with WORLD_SIZE=1 each trains a model of its own, without any error.

What to do
    Let one launcher set the numbers. Under Slurm either one task a rank (--ntasks-per-node as many
    as GPUs), or one task a node that starts torchrun.

When it is wrong
    A batch script that starts several jobs within one allocation has fewer ranks than tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ddpdoctor.checks import NotEnoughData, launch_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.launchfacts import LaunchFacts, Process
from ddpdoctor.wording import rank_list

_FIX = (
    "Let one launcher set RANK, WORLD_SIZE and LOCAL_RANK on all ranks: torchrun, or srun with one "
    "task a rank (--ntasks-per-node)."
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
    problems: dict[str, list[Process]] = defaultdict(list)
    for process in told:
        for problem in process.problems:
            problems[problem].append(process)
    if problems:
        yield _impossible(problems)


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
