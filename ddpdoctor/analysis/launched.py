"""How a recorded run was launched: what each rank told of its process, device, limits, network."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.launchfacts import LaunchFacts, Process
from ddpdoctor.tracefile import RankTrace, Run


def recorded_launch(run: Run) -> LaunchFacts:
    """Without a rendezvous: the ranks of a record have met. Ranks that told nothing are left out.

    Recordings of older versions tell nothing.
    """
    told = [_process(trace, trace.process) for trace in run.ranks if trace.process is not None]
    return LaunchFacts(tuple(told), run.info.world_size)


def _process(trace: RankTrace, told: Process) -> Process:
    """What the header and the loaders say of it, too."""
    info = trace.info
    workers = sum(loader.workers for loader in trace.loaders.values()) if trace.loaders else None
    return replace(
        told,
        rank=info.rank,
        world_size=info.world_size,
        backend=info.backend,
        environment=info.environment,
        versions=info.versions,
        threads=info.threads,
        loader_workers=workers,
    )
