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
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.events import DrawnIndices, LoaderInfo
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.sketch import index_hash_shares
from ddpdoctor.wording import percent, rank_list

LEAST_DRAWN: Final = 16  # an epoch of fewer samples says little
OVERLAP_WARNING: Final = 0.02  # of an epoch, beyond padding: less is lost in how epochs are cut
OVERLAP_ERROR: Final = 0.20
SAME_CONTENT: Final = 0.5  # augmentation changes some tensors of a sample; half agree in one
CONTENTS_NEEDED: Final = 4  # shared samples with a fingerprint on both sides


@dataclass(frozen=True)
class _Overlap:
    """What two ranks drew in common in one epoch of one loader, scaled from the sample."""

    ranks: tuple[int, int]
    loader: int
    epoch: int
    share: float  # of the smaller of the two epochs, beyond padding
    compared: int  # shared samples whose contents both ranks know
    same: float | None  # share of those that agree in at least one tensor, None without any


@trace_check("DD302", "repeated-samples")
def repeated_samples(run: Analysis) -> Iterator[Finding]:
    traces = run.run.ranks
    if len(traces) < 2:
        raise NotEnoughData("one rank's samples; two are needed to compare")
    drawn = {trace.info.rank: trace.drawn for trace in traces}
    if not all(any(epoch.drawn >= LEAST_DRAWN for epoch in epochs) for epochs in drawn.values()):
        raise NotEnoughData("indices of a map-style dataset were not seen on every rank")
    loaders = {trace.info.rank: trace.loaders for trace in traces}
    if any(loader.replacement for own in loaders.values() for loader in own.values()):
        raise NotEnoughData("the sampler draws with replacement, so repeats are meant")
    overlaps = [overlap for overlap in _overlaps(drawn, run.world_size) if _counts(overlap)]
    for loader in sorted({overlap.loader for overlap in overlaps}):
        yield _finding([o for o in overlaps if o.loader == loader], run, loader)


def _counts(overlap: _Overlap) -> bool:
    if overlap.share < OVERLAP_WARNING:
        return False
    known = overlap.same is not None and overlap.compared >= CONTENTS_NEEDED
    return not known or (overlap.same or 0.0) >= SAME_CONTENT


def _overlaps(drawn: dict[int, tuple[DrawnIndices, ...]], world_size: int) -> Iterator[_Overlap]:
    for first, second in combinations(sorted(drawn), 2):
        theirs = {(epoch.loader, epoch.epoch): epoch for epoch in drawn[second]}
        for own in drawn[first]:
            other = theirs.get((own.loader, own.epoch))
            if other is not None and min(own.drawn, other.drawn) >= LEAST_DRAWN:
                yield _overlap((first, second), own, other, world_size)


def _overlap(
    ranks: tuple[int, int], own: DrawnIndices, other: DrawnIndices, world_size: int
) -> _Overlap:
    share_kept = min(own.threshold, other.threshold)
    mine = dict(zip(own.indices, own.contents, strict=True))
    theirs = dict(zip(other.indices, other.contents, strict=True))
    common = sorted(mine.keys() & theirs.keys())
    if share_kept < 1:
        hashes = index_hash_shares(common)
        common = [index for index, at in zip(common, hashes, strict=True) if at < share_kept]
    repeated = max(0.0, len(common) / share_kept - (world_size - 1))
    pairs = [(mine[index], theirs[index]) for index in common]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    agree = sum(any(x == y for x, y in zip(a, b, strict=False)) for a, b in known)
    return _Overlap(
        ranks,
        own.loader,
        own.epoch,
        repeated / min(own.drawn, other.drawn),
        len(known),
        agree / len(known) if known else None,
    )


def _finding(overlaps: list[_Overlap], run: Analysis, loader: int) -> Finding:
    worst = max(overlaps, key=lambda overlap: overlap.share)
    ranks = tuple(sorted({rank for overlap in overlaps for rank in overlap.ranks}))
    info = next((trace.loaders[loader] for trace in run.run.ranks if loader in trace.loaders), None)
    seen = worst.same is not None and worst.compared >= CONTENTS_NEEDED
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
        evidence=tuple(_evidence(worst, share, info)),
        where=_where(ranks[0], info),
    )


def _evidence(worst: _Overlap, share: float, info: LoaderInfo | None) -> Iterator[Evidence]:
    yield Evidence(
        "samples that both ranks drew, beyond padding", 100 * share, "%", 100 * OVERLAP_WARNING
    )
    yield Evidence("shared samples whose contents were compared", worst.compared)
    if worst.same is not None:
        yield Evidence("of those with equal contents", 100 * worst.same, "%", 100 * SAME_CONTENT)
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
