"""DD507 uneven-loss-weights: samples count more on some ranks than on others.

What it measures
    The first dimension of the first tensor that each rank gives to the model, for the forwards of
    one reduction, on all ranks.

Why it matters
    Each rank averages its loss over its own samples, and DDP averages the ranks alike. A sample of
    a batch of 10 then counts nine times as much as one of a batch of 90: the gradient is not that
    of the whole batch, and differs from training on one device.

What to do
    Give all ranks batches of one size. Where sizes must differ, divide the summed loss by the
    number in all ranks' batches, and multiply by the number of ranks, since DDP divides by it.

When it is wrong
    A loss that is weighted as above is right, and what the loss divides by is not seen: so it is
    *likely* at most. The smaller last batch of an epoch is not counted as a problem. Where the
    first dimension is not that of samples, the words are wrong. Where only the lengths differ,
    as with padded text, it depends on the loss: that is a hint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.modelevents import BatchRun
from ddpdoctor.wording import percent, rank_list

LEAST_RATIO: Final = 1.1  # of batch sizes; less is lost in the noise of a gradient
LEAST_SHARE: Final = 0.2  # of reductions; the last batches of short epochs are up to a fifth
LEAST_LENGTHS: Final = 2.0  # ratio of lengths from which padded batches are worth a hint
REDUCTIONS_COMPARED: Final = 2000
LEAST_REDUCTIONS: Final = 5


@dataclass(frozen=True)
class _Sizes:
    """What each rank averages over in one reduction."""

    sync: int
    samples: dict[int, float]
    elements: dict[int, float]

    def ratio(self, of: str) -> float:
        values = getattr(self, of).values()
        return float(max(values) / min(values))


@trace_check("DD507", "uneven-loss-weights")
def uneven_loss_weights(run: Analysis) -> Iterator[Finding]:
    compared = False
    for group in run.models:
        sizes = list(_sizes(group))
        if len(sizes) < LEAST_REDUCTIONS:
            continue
        compared = True
        if _is_uneven(sizes, "samples", LEAST_RATIO):
            yield _finding(group, sizes)
        elif _is_uneven(sizes, "elements", LEAST_LENGTHS):
            yield _hint(group, sizes)
    if not compared:
        raise NotEnoughData("batch sizes of one model were not seen on two ranks")


def _is_uneven(sizes: Sequence[_Sizes], of: str, least: float) -> bool:
    return sum(each.ratio(of) >= least for each in sizes) >= LEAST_SHARE * len(sizes)


def _sizes(group: ModelGroup) -> Iterator[_Sizes]:
    """Of up to REDUCTIONS_COMPARED reductions, evenly spread, that are known of all ranks."""
    runs = {rank: sorted(facts.batches.get(group.number, ()), key=lambda r: r.sync)
            for rank, facts in group.facts.items()}  # fmt: skip
    if len(runs) < 2 or not all(runs.values()):
        return
    begins = {rank: [run.sync for run in own] for rank, own in runs.items()}
    last = min(own[-1].sync + own[-1].syncs for own in runs.values())
    wanted = set(range(1, last, max(1, last // REDUCTIONS_COMPARED)))
    for sync in sorted(wanted):
        found = {rank: _at(own, begins[rank], sync) for rank, own in runs.items()}
        known = {rank: run for rank, run in found.items() if run is not None}
        if len(known) == len(runs):
            yield _Sizes(
                sync,
                {rank: run.samples / max(1, run.forwards) for rank, run in known.items()},
                {rank: run.elements / max(1, run.forwards) for rank, run in known.items()},
            )


def _at(runs: Sequence[BatchRun], begins: Sequence[int], sync: int) -> BatchRun | None:
    index = bisect_right(begins, sync) - 1
    if index < 0 or sync >= runs[index].sync + runs[index].syncs:
        return None
    return runs[index] if runs[index].samples and runs[index].elements else None


def _finding(group: ModelGroup, sizes: Sequence[_Sizes]) -> Finding:
    means = {r: sum(each.samples[r] for each in sizes) / len(sizes) for r in sizes[0].samples}
    few, many = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    ratio = median(each.ratio("samples") for each in sizes)
    share = sum(each.ratio("samples") >= LEAST_RATIO for each in sizes) / len(sizes)
    persistent = means[many] >= LEAST_RATIO * means[few]
    who = (
        f"a sample on rank {few} counts {means[many] / means[few]:.1f} times as much as one on "
        f"rank {many}"
        if persistent
        else f"in the median step samples of one rank count {ratio:.1f} times as much as another's"
    )
    said = ", ".join(f"{mean:.3g} on rank {rank}" for rank, mean in means.items())
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        message=(
            f"the ranks give {group.label} batches of different sizes in {percent(share)} of steps "
            f"({said}): with a loss that each rank averages, {who}"
        ),
        fix=(
            "Give all ranks batches of one size, or divide the summed loss by the samples of all "
            f"ranks and multiply it by {len(group.ranks)}, the number of ranks."
        ),
        culprits=(few,) if persistent else (),
        evidence=(
            Evidence("samples a forward, on average", said),
            Evidence("median ratio of batch sizes", ratio, "", LEAST_RATIO),
            Evidence("steps in which they differ", 100 * share, "%", 100 * LEAST_SHARE),
        ),
    )


def _hint(group: ModelGroup, sizes: Sequence[_Sizes]) -> Finding:
    ratio = median(each.ratio("elements") for each in sizes)
    return Finding(
        severity=Severity.INFO,
        confidence=Confidence.POSSIBLE,
        message=(
            f"{rank_list(group.ranks)} give {group.label} batches of different lengths (in the "
            f"median step {ratio:.1f} times): a loss that each rank averages over tokens weighs "
            "them unevenly"
        ),
        fix=(
            "Divide the summed loss by the tokens of all ranks and multiply it by "
            f"{len(group.ranks)}, the number of ranks, or group batches by length on all ranks."
        ),
        evidence=(Evidence("median ratio of elements in a batch", ratio, "", LEAST_LENGTHS),),
    )
