"""DD507 uneven-loss-weights: samples count more on some ranks than on others.

What it measures
    The first dimension of the first tensor that each rank gives to the model, for the forwards of
    one reduction, on all ranks. At the reductions that are looked at also how many values the loss
    averages over (targets that are ignored left out), and the numbers that multiply it.

Why it matters
    Each rank averages its loss over its own samples, and DDP averages the ranks alike. A sample of
    a batch of 10 then counts nine times as much as one of a batch of 90: the gradient is not that
    of the whole batch, and differs from training on one device.

What to do
    Give all ranks batches of one size. Where sizes must differ, divide the summed loss by the
    number in all ranks' batches, and multiply by the number of ranks, since DDP divides by it.

When it is wrong
    What the loss divides by is read from its graph where torch's own functions made it, on the
    CPU: then a loss that is weighted as above is told from others. Elsewhere only sizes are
    known, and it is *likely* at most; where the first dimension is not that of samples, the words
    are wrong. Where only lengths differ, as with padded text, it is a hint then. The smaller last
    batch of an epoch is not counted as a problem, nor are token counts that differ by chance.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ddpdoctor.analysis.losses import Weights, weights
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
LEAST_LOSSES: Final = 3  # that were looked at, to say that ranks weigh alike
LEAST_UNEVEN: Final = 5  # to say that they do not: the first few steps may well be others
MOSTLY: Final = 0.9  # of these


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
        sizes, losses = list(_sizes(group)), weights(group)
        known = len(losses) >= LEAST_LOSSES
        if len(sizes) < LEAST_REDUCTIONS and not known:
            continue
        compared = True
        if known and _weigh_alike(losses, sizes):
            continue
        if _is_uneven(sizes, "samples", LEAST_RATIO):
            yield _finding(group, sizes)
        elif len(losses) >= LEAST_UNEVEN and _median_ratio(losses) >= LEAST_LENGTHS:
            yield _of_losses(group, losses)
        elif not known and _is_uneven(sizes, "elements", LEAST_LENGTHS):
            yield _hint(group, sizes)
    if not compared:
        raise NotEnoughData("batch sizes of one model were not seen on two ranks")


def _weigh_alike(losses: Sequence[Weights], sizes: Sequence[_Sizes]) -> bool:
    """Values count alike on all ranks, also where the batches that were looked at did not."""
    looked_at = {each.sync for each in losses}
    seen = [each for each in sizes if each.sync in looked_at]
    uneven = [each for each in sizes if each.ratio("samples") >= LEAST_RATIO]
    alike = all(each.whole and each.ratio < LEAST_RATIO for each in losses)
    return alike and (not uneven or any(each in uneven for each in seen))


def _is_uneven(sizes: Sequence[_Sizes], of: str, least: float) -> bool:
    return bool(sizes) and sum(each.ratio(of) >= least for each in sizes) >= LEAST_SHARE * len(
        sizes
    )


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


def _median_ratio(losses: Sequence[Weights]) -> float:
    return median(each.ratio for each in losses)


def _of_losses(group: ModelGroup, losses: Sequence[Weights]) -> Finding:
    """What a value weighs is known of each rank, and is not the same."""
    ranks = list(losses[0].weights)
    means = {r: sum(each.weights[r] for each in losses) / len(losses) for r in ranks}
    most, least = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    bias = means[most] / means[least]
    favoured = sum(e.weights[most] >= LEAST_RATIO * e.weights[least] for e in losses)
    persistent = bias >= LEAST_LENGTHS and favoured >= MOSTLY * len(losses)
    ratio = _median_ratio(losses)
    averaged = {r: sum(each.averaged[r] for each in losses) / len(losses) for r in ranks}
    said = ", ".join(f"{mean:.4g} on rank {rank}" for rank, mean in averaged.items())
    who = (
        f"one on rank {most} counts {bias:.1f} times as much as one on rank {least}"
        if persistent
        else f"in the median step one of some rank counts {ratio:.1f} times as much as another's"
    )
    return Finding(
        severity=Severity.WARNING if persistent else Severity.INFO,
        confidence=Confidence.LIKELY,
        message=(
            f"each rank averages the loss of {group.label} over its own values, such as tokens "
            f"({said}), and DDP averages the ranks alike: {who}"
        ),
        fix=(
            "Divide the summed loss by the tokens of all ranks (all-reduce their number) and "
            f"multiply it by {len(group.ranks)}, the number of ranks, or group batches by length "
            "on all ranks."
        ),
        culprits=(most,) if persistent else (),
        evidence=(
            Evidence("values that the loss averages over, on average", said),
            Evidence("median ratio of their weights", ratio, "", LEAST_LENGTHS),
            Evidence("losses looked at", len(losses)),
        ),
    )
