"""DD302 repeated-samples: ranks train on the same samples in one epoch.

What it measures
    The indices that each rank's loader delivered in an epoch (a sample of them that is the same
    on every rank where there are many), and fingerprints of the delivered samples. Two ranks that
    draw an index and get the same content have trained on one sample twice.

Why it matters
    Ranks that repeat each other's samples do the work of one: the job takes as many times longer as
    it has ranks, and the effective batch is not the one intended. Nothing fails and the loss
    goes down, so it is found late.

What to do
    Give the DataLoader a DistributedSampler(dataset), drop `shuffle=True`, and call
    `sampler.set_epoch(epoch)` in each epoch.

When it is wrong
    A DistributedSampler repeats up to world size - 1 samples to make the ranks' shares equal, which
    is allowed for. Ranks that read shards of their own may draw equal indices of different data:
    the
    fingerprints tell. Where batches cannot be taken apart the confidence is lower. Sampling with
    replacement repeats by intent and is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.overlap import LEAST_DRAWN, Overlap, overlaps
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.events import LoaderInfo
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.wording import percent, rank_list

OVERLAP_WARNING: Final = 0.02  # of an epoch, beyond padding: less is lost in how epochs are cut
OVERLAP_ERROR: Final = 0.20


@trace_check("DD302", "repeated-samples")
def repeated_samples(run: Analysis) -> Iterator[Finding]:
    traces = run.run.ranks
    if len(traces) < 2:
        raise NotEnoughData("one rank's samples; two are needed to compare")
    if not all(any(e.drawn >= LEAST_DRAWN for e in trace.drawn) for trace in traces):
        raise NotEnoughData("indices of a map-style dataset were not seen on every rank")
    if any(loader.replacement for trace in traces for loader in trace.loaders.values()):
        raise NotEnoughData("the sampler draws with replacement, so repeats are meant")
    repeated = [
        overlap
        for overlap in overlaps(traces, run.world_size)
        if overlap.share >= OVERLAP_WARNING and overlap.same_data is not False
    ]
    for loader in sorted({overlap.loader for overlap in repeated}):
        yield _finding([o for o in repeated if o.loader == loader], run, loader)


def _finding(repeated: list[Overlap], run: Analysis, loader: int) -> Finding:
    worst = max(repeated, key=lambda overlap: overlap.share)
    ranks = tuple(sorted({rank for overlap in repeated for rank in overlap.ranks}))
    info = next((trace.loaders[loader] for trace in run.run.ranks if loader in trace.loaders), None)
    seen = worst.same_data is not None
    share = min(1.0, worst.share)
    return Finding(
        severity=Severity.ERROR if share >= OVERLAP_ERROR and seen else Severity.WARNING,
        confidence=Confidence.CERTAIN if seen else Confidence.POSSIBLE,
        message=(
            f"{rank_list(ranks)} train on the same samples: in epoch {worst.epoch} ranks "
            f"{worst.ranks[0]} and {worst.ranks[1]} share {percent(share)} of what they drew"
            + ("" if seen else " (equal indices; the contents could not be compared)")
        ),
        fix=_fix(info, run.world_size),
        culprits=ranks,
        steps=((run.steps.first_sync, run.steps.last_sync),) if run.steps.counted else (),
        evidence=tuple(_evidence(worst, share, info)),
        where=_where(ranks[0], info),
    )


def _evidence(worst: Overlap, share: float, info: LoaderInfo | None) -> Iterator[Evidence]:
    yield Evidence(
        "samples that both ranks drew, beyond padding", 100 * share, "%", 100 * OVERLAP_WARNING
    )
    yield Evidence("shared samples whose contents were compared", worst.compared)
    if worst.same_data is not None:
        yield Evidence("their contents are", "the same" if worst.same_data else "not the same")
    if info is not None:
        yield Evidence("sampler", info.sampler)
        yield Evidence("samples in the dataset", info.dataset_length)


def _fix(info: LoaderInfo | None, world_size: int) -> str:
    if info is not None and info.sampler_replicas is not None:
        return (
            f"Its DistributedSampler was made for {info.sampler_replicas} replicas as rank "
            f"{info.sampler_rank}; the job has {world_size} ranks. Give every rank the same "
            f"num_replicas and "
            "seed and its own rank, or leave the three to their defaults."
        )
    sampler = f" ({info.sampler} now)" if info is not None else ""
    return (
        f"Give the DataLoader sampler=DistributedSampler(dataset){sampler}, without "
        f"shuffle=True, and call "
        f"sampler.set_epoch(epoch) in each epoch. An epoch then takes 1/{world_size} of the steps."
    )


def _where(rank: int, info: LoaderInfo | None) -> tuple[Location, ...]:
    if info is None or info.site is None:
        return ()
    return (Location(rank, info.site.file, info.site.line, info.site.function),)
