"""DD510 wrong-scaling: a loss, gradients, their norm or a total has the number of ranks in it.

What it measures
    At the reductions that are looked at: the loss's graph, for a mean that is multiplied by the
    number of ranks; and some gradients after the reduction and again when the optimizer begins. At
    some calls of each line: the few numbers that the script sums over ranks, with what becomes of
    the gradients, and gathers of what requires a gradient.

Why it matters
    DDP averages gradients, and a norm of them is that of all ranks already. A second sum or a
    factor by hand makes the effective learning rate, or what the clipping compares, as many times
    too large as there are ranks. A total that is summed in place grows by that factor at each call.

What to do
    Leave out the factor or the second reduction. Sum a copy of a total, or set it to zero
    afterwards. Gather with a gradient where the loss is to reach the ranks that made it.

When it is wrong
    The factor may be meant: a loss that was divided by the samples of all ranks needs it, and is
    not told. Where the script's lines do not show that the factor is the number of ranks, it may be
    another number: that is a hint, and so is a gather without gradient, since what the loss does
    with it is not seen. A norm that is divided by the number of ranks after it was summed is
    right. Dividing by as many accumulated batches as there are ranks is told apart. A learning rate
    or a schedule that counts ranks wrongly is not seen, nor a factor beside that of a loss scaler.
    Tensors on a GPU are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from ddpdoctor.analysis.exchanges import EXACT, LEAST_LOOKS, regrown, summed_norms, sums_of_lines
from ddpdoctor.analysis.losses import losses_of
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Finding
from ddpdoctor.modelevents import Loss, LossTerm, Rescaled
from ddpdoctor.scalingwording import (
    gathered_without_gradient,
    loss_times_ranks,
    norm_summed,
    rescaled_by_ranks,
    total_regrown,
)

LEAST_SHARE: Final = 0.8  # of the looks; a factor that is meant once is not one of every step


@trace_check("DD510", "wrong-scaling")
def wrong_scaling(run: Analysis) -> Iterator[Finding]:
    groups = [group for group in run.models if len(group.ranks) > 1]
    looked = [_looks_at_gradients(group) or _losses(group) for group in groups]
    lines = sums_of_lines(run.run)
    gathers = {trace.info.rank: trace.model.gathered for trace in run.run.ranks}
    if not (any(looked) or lines or any(gathers.values())):
        raise NotEnoughData("gradients were not compared before and after what the script does")
    for group in groups:
        yield from _of_gradients(group)
        yield from _of_losses(group)
    for norm in summed_norms(lines):
        yield norm_summed(norm)
    for total in regrown(lines):
        yield total_regrown(total)
    yield from gathered_without_gradient(gathers, LEAST_LOOKS)


def _looks_at_gradients(group: ModelGroup) -> dict[int, list[Rescaled]]:
    looks = {rank: [r for r in facts.rescaled if r.model == group.number]
             for rank, facts in group.facts.items()}  # fmt: skip
    return {rank: own for rank, own in looks.items() if len(own) >= LEAST_LOOKS}


def _of_gradients(group: ModelGroup) -> Iterator[Finding]:
    looks, world = _looks_at_gradients(group), len(group.ranks)
    for factor in (float(world), 1 / world):
        shares = {rank: sum(_is_by(look, factor) for look in own) / len(own)
                  for rank, own in looks.items()}  # fmt: skip
        ranks = [rank for rank, share in shares.items() if share >= LEAST_SHARE]
        if ranks:
            worst = min(shares[rank] for rank in ranks)
            yield rescaled_by_ranks(group, factor, ranks, (worst, LEAST_SHARE))


def _is_by(look: Rescaled, factor: float) -> bool:
    """Whether all were multiplied by it, and not only divided by the batches accumulated."""
    if look.forwards > 1 and abs(look.forwards * factor - 1) < EXACT:
        return False
    return bool(look.ratios) and all(abs(r / factor - 1) < EXACT for r in look.ratios)


def _losses(group: ModelGroup) -> dict[int, list[Loss]]:
    looks = {rank: losses_of(group, rank) for rank in group.ranks}
    return {rank: own for rank, own in looks.items() if len(own) >= LEAST_LOOKS}


def _of_losses(group: ModelGroup) -> Iterator[Finding]:
    world = len(group.ranks)
    scaled: dict[int, Sequence[Loss]] = {}
    for rank, own in _losses(group).items():
        found = [loss for loss in own if any(_has_ranks(t, loss, world) for t in loss.terms)]
        if len(found) >= LEAST_SHARE * len(own):
            scaled[rank] = found
    if scaled:
        yield loss_times_ranks(group, scaled)


def _has_ranks(term: LossTerm, loss: Loss, world: int) -> bool:
    """A mean of this rank's own that is multiplied by the number of ranks.

    Beside it only a division by the batches accumulated: with any other factor the loss may be one
    that was divided by what all ranks have.
    """
    product = prod(term.factors)
    allowed = (world, world / max(1, loss.forwards))
    by_ranks = world in term.factors and any(abs(product / a - 1) < EXACT for a in allowed)
    return term.is_mean and by_ranks
