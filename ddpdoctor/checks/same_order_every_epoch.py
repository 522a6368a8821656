"""DD305 same-order-every-epoch: a shuffling sampler gives every epoch the same order.

What it measures
    A hash of the indices that each rank drew, in their order, over the epochs of one loader. Epochs
    of different length are compared as far as both go, up to a power of two of batches.

Why it matters
    Batches are then made of the same samples in every epoch, which costs accuracy. It fails
    nowhere: DistributedSampler shuffles by `seed + epoch`, and its epoch stays 0 until it is told.

What to do
    Call `loader.sampler.set_epoch(epoch)` before each epoch, on every rank. Do not call
    `torch.manual_seed` with the same number at the start of each epoch.

When it is wrong
    A fixed order may be meant, as in a curriculum: samplers that say `shuffle=False` and indices
    that only rise are no finding, and samplers that do not say whether they shuffle are info.
    Streams (iterable datasets) are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.overlap import LEAST_DRAWN
from ddpdoctor.analysis.sharding import SharedLoader, all_steps, shared_loaders
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.deliveries import LoaderEpoch
from ddpdoctor.events import LoaderInfo
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import rank_list

LEAST_INDICES: Final = 8  # in one order by chance once in 40,000 times


@trace_check("DD305", "same-order-every-epoch")
def same_order_every_epoch(run: Analysis) -> Iterator[Finding]:
    judged = False
    for loader in shared_loaders(run):
        epochs = loader.epochs()
        pairs = [(a, b) for a, b in pairwise(epochs) if b == a + 1]
        compared = [_same_on(epochs[a], epochs[b]) for a, b in pairs]
        known = [same for same in compared if same is not None]
        if not known:
            continue
        judged = True
        ranks = tuple(sorted(set.intersection(*known)))
        if ranks and not _is_meant(loader.infos[ranks[0]], epochs[pairs[0][0]][ranks[0]]):
            yield _finding(loader, ranks, len(known) + 1, epochs, run)
    if not judged:
        raise NotEnoughData("no loader of indices was seen in two epochs that follow each other")


def _same_on(
    first: Mapping[int, LoaderEpoch], second: Mapping[int, LoaderEpoch]
) -> set[int] | None:
    """The ranks whose order is the same in both; None where no rank's can be compared."""
    comparable = {rank for rank in first if _are_comparable(first[rank], second[rank])}
    if not comparable:
        return None
    return {rank for rank in comparable if _are_equal(first[rank].order, second[rank].order)}


def _are_comparable(first: LoaderEpoch, second: LoaderEpoch) -> bool:
    if not first.order or not second.order:
        return False
    least = min(first.samples or 0, second.samples or 0)
    return least >= LEAST_DRAWN and len(first.first_indices) >= LEAST_INDICES


def _are_equal(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    common = min(len(first), len(second))
    return first[:common] == second[:common]


def _is_meant(info: LoaderInfo, epoch: LoaderEpoch) -> bool:
    rising = all(a < b for a, b in pairwise(epoch.first_indices))
    return info.shuffle is False or rising


def _finding(
    loader: SharedLoader,
    ranks: tuple[int, ...],
    count: int,
    epochs: Mapping[int, Mapping[int, LoaderEpoch]],
    run: Analysis,
) -> Finding:
    info = loader.infos[ranks[0]]
    told = {epoch[ranks[0]].sampler_epoch for epoch in epochs.values()}
    says_so = info.shuffle is True
    forgotten = says_so and info.sampler_replicas is not None and len(told) == 1
    return Finding(
        severity=Severity.WARNING if says_so else Severity.INFO,
        confidence=Confidence.CERTAIN if says_so else Confidence.POSSIBLE,
        message=(
            f"{rank_list(ranks)} {_draw(ranks)} samples in the same order in "
            f"each of {count} epochs, though the {info.sampler} "
            + ("shuffles" if says_so else "does not give them in the order of the dataset")
        ),
        fix=_fix(told, forgotten=forgotten),
        culprits=ranks,
        steps=all_steps(run),
        evidence=(
            Evidence("epochs compared", count),
            Evidence("samples of an epoch", epochs[min(epochs)][ranks[0]].samples),
            Evidence("sampler", info.sampler),
            Evidence("epochs that set_epoch was told", _listed(told)),
        ),
        where=loader.where(ranks),
    )


def _draw(ranks: tuple[int, ...]) -> str:
    return "draws its" if len(ranks) == 1 else "draw their"


def _listed(told: set[int | None]) -> str:
    known = sorted(number for number in told if number is not None)
    return ", ".join(map(str, known[:5])) if known else "not known"


def _fix(told: set[int | None], *, forgotten: bool) -> str:
    if forgotten:
        return (
            f"Its epoch stays {_listed(told)}: call sampler.set_epoch(epoch) before each epoch, on "
            "all ranks."
        )
    return (
        "See why each epoch begins from the same random state: a `manual_seed` before each epoch, "
        "a generator made anew with the same seed, or an order that the sampler keeps."
    )
