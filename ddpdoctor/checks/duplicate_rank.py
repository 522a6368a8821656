"""DD401 duplicate-rank: several processes claim the same rank.

What it measures
    The rank that each process of the launch got from its launcher, with host and process number;
    under `ddpdoctor run` the rank with which each of them called init_process_group; in a job that
    hangs, the RANK of each living process, or the rank by which it calls init_process_group.

Why it matters
    The rendezvous counts a rank that comes twice, and waits for the one that then nobody is. The
    job stands in init_process_group until its time limit, and no error names the rank.

What to do
    Let the launcher give the numbers: torchrun, or under srun one task a rank with
    RANK=$SLURM_PROCID taken within the task. A number set by hand or in a batch script is the same
    for all tasks.

When it is wrong
    Two jobs that were given the same address and port, and the same job id, look like one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ddpdoctor.checks import NotEnoughData, hang_check, launch_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.hang.arguments import joins_as, world_size_told
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.launchfacts import LaunchFacts, Process, Reach
from ddpdoctor.wording import rank_list


@launch_check("DD401", "duplicate-rank")
def duplicate_rank(launch: LaunchFacts) -> Iterator[Finding]:
    ranks = launch.ranks
    if launch.rendezvous is None or launch.rendezvous.reach is not Reach.REACHED:
        raise NotEnoughData("no other rank was met")
    if launch.is_noted and not launch.rendezvous.address:
        raise NotEnoughData("the ranks meet in a store of the script's, and not all in one maybe")
    for rank, processes in ranks.items():
        if launch.is_noted and launch.world_size == 1:
            continue  # each is alone, which is DD403
        if len(processes) > 1:
            places = [f"pid {process.pid} on {process.host}" for process in processes]
            yield _finding(rank, places, launch.missing, _told(processes), launch.unit)


@hang_check("DD401", "duplicate-rank")
def duplicate_rank_in_a_hang(snapshot: HangSnapshot) -> Iterator[Finding]:
    by_rank: dict[int, list[str]] = defaultdict(list)
    for process in snapshot.ranks:
        rank = joins_as(process)
        if rank is not None:
            by_rank[rank].append(f"pid {process.pid} on {snapshot.host}")
    for rank, places in by_rank.items():
        if len(places) > 1:
            missing = set(range(world_size_told(snapshot) or 0)) - set(by_rank)
            yield _finding(rank, places, tuple(sorted(missing)))


def _finding(
    rank: int,
    places: Sequence[str],
    missing: tuple[int, ...],
    tasks: Iterable[Evidence] = (),
    unit: str = "rank",
) -> Finding:
    nobody = f", and nobody is {rank_list(missing, unit)}" if missing else ""
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=f"{len(places)} processes claim {unit} {rank}: {', '.join(places)}{nobody}",
        fix=(
            "Start the ranks by torchrun, which numbers them; under srun set RANK=$SLURM_PROCID "
            "within each task, and as many tasks a node as it has ranks (--ntasks-per-node). Where "
            "the script gives a rank to init_process_group, give another one in each process."
        ),
        culprits=(rank,),
        victims=missing,
        evidence=tuple(tasks),
    )


def _told(processes: Sequence[Process]) -> Iterator[Evidence]:
    """The numbers that Slurm, and for a call of init_process_group any launcher, gave to them."""
    for process in processes:
        names = ("RANK", "SLURM_PROCID") if process.joining is not None else ("SLURM_PROCID",)
        given = [f"{n}={process.environment[n]}" for n in names if n in process.environment]
        if given:
            yield Evidence(f"pid {process.pid}", ", ".join(given))
