"""DD302 repeated-samples: ranks train on the same samples in one epoch.

What it measures
    The indices that each rank's loader delivered in an epoch (a sample of them that is the same
    on every rank where there are many), and fingerprints of the delivered samples. Two ranks that
    draw an index and get the same content have trained on one sample twice. And what all ranks
    drew of a loader of evaluation, against the length of its dataset.

Why it matters
    Ranks that repeat each other's samples do the work of one: the job takes as many times longer as
    it has ranks, and the effective batch is not the one intended. Nothing fails and the loss
    goes down, so it is found late. In an evaluation samples that fill up the ranks' shares are
    counted twice, and the score depends on the number of ranks.

What to do
    Give the DataLoader a DistributedSampler(dataset), drop `shuffle=True`, and call
    `sampler.set_epoch(epoch)` in each epoch. In an evaluation leave padding out of the score.

When it is wrong
    A DistributedSampler repeats up to world size - 1 samples to make the ranks' shares equal, which
    is allowed for. In an evaluation it is a hint where it is a percent of the data or more: the
    script may cut it off its results. Ranks that read shards of their own may draw equal indices of
    different data: the fingerprints tell. *Certain*: tensors that are nearly unique to a sample
    agree. *Likely*: they do not, but labels do, and the samples are about as bright as each other;
    random augmentation looks so. *Possible*, and not counted as a problem: nothing told the two
    apart, as where batches cannot be taken apart, or where labels agree and augmentation changed
    the brightness. Samples that are augmented and have no label are taken for different ones.
    Samplers with wrong settings are DD303, which then says what is shared, and datasets of
    different length DD307.
    Only ranks that reduce their gradients together are compared. Where a rank repeats its own
    samples about as often as those of the others it draws with replacement, and the check is
    skipped; of a sampler without an end the first pass over the dataset is compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.overlap import LEAST_DRAWN, Contents, Overlap, overlaps
from ddpdoctor.analysis.sharding import mismatches, shared_loaders
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.deliveries import Evaluated
from ddpdoctor.events import LoaderInfo
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.wording import percent, rank_list

PADDING_TOLD: Final = 0.01  # of an evaluation; less hardly moves a score
OVERLAP_WARNING: Final = 0.02  # of an epoch, beyond padding: less is lost in how epochs are cut
OVERLAP_ERROR: Final = 0.20
OWN_REPEATS: Final = 0.25  # of the overlap; drawing with replacement has a half and more
WITH_REPLACEMENT: Final = "the sampler draws with replacement, so repeats are meant"
CONFIDENCE: Final = {
    Contents.SAME: Confidence.CERTAIN,
    Contents.ALIKE: Confidence.LIKELY,
    Contents.UNKNOWN: Confidence.POSSIBLE,
}
CONTENTS_ARE: Final = {
    Contents.SAME: "the same",
    Contents.ALIKE: "alike in their labels, as those of augmented samples are",
}


@trace_check("DD302", "repeated-samples")
def repeated_samples(run: Analysis) -> Iterator[Finding]:
    padded = list(_padded_evaluations(run))
    yield from padded
    try:
        yield from _in_training(run)
    except NotEnoughData:
        if not padded:
            raise


def _padded_evaluations(run: Analysis) -> Iterator[Finding]:
    """Loaders of which the ranks drew more together than there is, to have equally many each."""
    drawn: dict[tuple[object, ...], dict[int, Evaluated]] = defaultdict(dict)
    for trace in run.run.ranks:
        for own in trace.evaluated:
            info = own.loader
            key = (info.site, info.dataset_length, info.sampler_replicas)
            drawn[key][trace.info.rank] = own
    for by_rank in drawn.values():
        info = next(iter(by_rank.values())).loader
        length, replicas = info.dataset_length, info.sampler_replicas
        total = sum(own.samples for own in by_rank.values())
        shares = {own.loader.sampler_rank for own in by_rank.values()}
        if not length or len(by_rank) != replicas or len(shares) != replicas:
            continue
        if PADDING_TOLD * length <= total - length < replicas:
            yield _of_padding(info, tuple(sorted(by_rank)), total, length)


def _of_padding(info: LoaderInfo, ranks: tuple[int, ...], total: int, length: int) -> Finding:
    padding = total - length
    return Finding(
        severity=Severity.INFO,
        confidence=Confidence.LIKELY,
        message=(
            f"{padding} of {total} samples that the ranks evaluate are duplicates: {length} "
            f"samples are filled up so that {rank_list(ranks)} have equally many"
        ),
        fix=(
            "Leave the padding out of the score: cut what was gathered, in the order of the "
            f"dataset, to its {length} samples, or give the evaluation a sampler that does not "
            "fill up (such as `range(rank, len(dataset), ranks)`) and call `model.module` there."
        ),
        culprits=ranks,
        evidence=(
            Evidence("samples evaluated by all ranks together", total, "", length),
            Evidence("duplicates", 100 * padding / length, "%", 100 * PADDING_TOLD),
            Evidence("sampler", info.sampler),
        ),
        where=_where(ranks[0], info),
    )


def _in_training(run: Analysis) -> Iterator[Finding]:
    traces = run.run.ranks
    if len(traces) < 2:
        raise NotEnoughData("one rank's samples; two are needed to compare")
    if not all(any(e.drawn >= LEAST_DRAWN for e in trace.drawn) for trace in traces):
        raise NotEnoughData("indices of a map-style dataset were not seen on every rank")
    explained = {loader.number for loader, _ in mismatches(run)}
    explained |= {one.number for one in shared_loaders(run) if one.splits_other_lengths}
    judged = [
        overlap
        for overlap in overlaps(traces, run.world_size)
        if overlap.loader not in explained
        and not any(_replaces(trace.loaders.get(overlap.loader)) for trace in traces)
    ]
    if not judged and any(map(_replaces, (i for trace in traces for i in trace.loaders.values()))):
        raise NotEnoughData(WITH_REPLACEMENT)
    repeated = [o for o in _of_same_data(judged) if o.share >= OVERLAP_WARNING]
    meant = [o for o in repeated if o.own_repeats >= OWN_REPEATS * o.share]
    causes: dict[str, list[Overlap]] = defaultdict(list)
    for overlap in repeated:
        if overlap not in meant:
            causes[_fix(_info(run, overlap.loader), run.world_size)].append(overlap)
    for fix, found in causes.items():
        yield _finding(found, run, fix)
    if meant and not causes:
        raise NotEnoughData(WITH_REPLACEMENT)


def _replaces(info: LoaderInfo | None) -> bool:
    return info is not None and info.replacement


def _of_same_data(judged: Sequence[Overlap]) -> Iterator[Overlap]:
    """For each loader and two ranks the epochs that tell most; none where the data differ."""
    pairs: dict[tuple[int, tuple[int, int]], list[Overlap]] = defaultdict(list)
    for overlap in judged:
        pairs[overlap.loader, overlap.ranks].append(overlap)
    for epochs in pairs.values():
        surest = max(overlap.contents for overlap in epochs)
        if surest > Contents.UNKNOWN:
            yield from (overlap for overlap in epochs if overlap.contents > Contents.UNKNOWN)
        elif all(overlap.contents is Contents.UNKNOWN for overlap in epochs):
            yield from epochs


def _info(run: Analysis, loader: int) -> LoaderInfo | None:
    return next((trace.loaders[loader] for trace in run.run.ranks if loader in trace.loaders), None)


def _finding(repeated: Sequence[Overlap], run: Analysis, fix: str) -> Finding:
    worst = max(repeated, key=lambda overlap: (overlap.contents, overlap.share))
    info = _info(run, worst.loader)
    ranks = tuple(sorted({rank for overlap in repeated for rank in overlap.ranks}))
    share = min(1.0, worst.share)
    return Finding(
        severity=_severity(worst.contents, share),
        confidence=CONFIDENCE[worst.contents],
        message=(
            f"{rank_list(ranks)} {_train_on(worst)}: in epoch {worst.epoch} ranks "
            f"{worst.ranks[0]} and {worst.ranks[1]} share {percent(share)} of what they drew"
            + _reserve(worst)
        ),
        fix=fix,
        culprits=ranks,
        steps=((run.steps.first_sync, run.steps.last_sync),) if run.steps.counted else (),
        evidence=tuple(_evidence(worst, share, info)),
        where=_where(ranks[0], info),
    )


def _severity(contents: Contents, share: float) -> Severity:
    if contents is Contents.UNKNOWN:
        return Severity.INFO
    return Severity.ERROR if share >= OVERLAP_ERROR else Severity.WARNING


def _train_on(overlap: Overlap) -> str:
    known = overlap.contents is not Contents.UNKNOWN
    return "train on the same samples" if known else "draw the same indices"


def _reserve(overlap: Overlap) -> str:
    if overlap.contents is not Contents.UNKNOWN:
        return ""
    if overlap.compared:
        return "; what was compared of the samples does not tell whether they are the same"
    return "; the samples could not be compared, and are others if each rank reads data of its own"


def _evidence(worst: Overlap, share: float, info: LoaderInfo | None) -> Iterator[Evidence]:
    yield Evidence(
        "samples that both ranks drew, beyond padding", 100 * share, "%", 100 * OVERLAP_WARNING
    )
    yield Evidence("shared samples whose contents were compared", worst.compared)
    if worst.contents in CONTENTS_ARE:
        yield Evidence("their contents are", CONTENTS_ARE[worst.contents])
    if info is not None:
        yield Evidence("sampler", info.sampler)
        yield Evidence("samples in the dataset", info.dataset_length)


def _fix(info: LoaderInfo | None, world_size: int) -> str:
    if info is not None and info.sampler_replicas is not None:
        return (
            f"Its {info.sampler} was made for {info.sampler_replicas} of {world_size} ranks and "
            "says nothing of what is wrong. See what each rank's dataset holds, and that nothing "
            "draws from the dataset past the sampler."
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
