"""DD510 wrong-scaling: gradients are multiplied by the number of ranks after they were averaged.

What it measures
    At the reductions that are looked at, the magnitudes of some gradients after the reduction and
    again when the optimizer begins. All of them grown by exactly the number of ranks, or shrunk by
    it, is a second reduction or a factor by hand.

Why it matters
    DDP averages already. A second sum over ranks makes the effective learning rate, or what the
    clipping compares, as many times too large as there are ranks; a second division makes it too
    small. It then depends on how many ranks there are.

What to do
    Leave out the reduction or the factor by hand: after backward the gradients are the average over
    all ranks.

When it is wrong
    A loss that is multiplied by the number of ranks before backward is not seen, nor are a
    learning rate or a schedule that count ranks wrongly. The factor may be meant: a loss that was
    divided by the samples of all ranks needs it. Dividing by as many accumulated
    batches as there are ranks is told apart. Tensors on a GPU are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.modelevents import Rescaled
from ddpdoctor.wording import rank_list

EXACT: Final = 0.002  # of the factor; float16 gradients keep three digits
LEAST_LOOKS: Final = 3
LEAST_SHARE: Final = 0.8  # of the looks; a factor that is meant once is not one of every step


@trace_check("DD510", "wrong-scaling")
def wrong_scaling(run: Analysis) -> Iterator[Finding]:
    looked = False
    for group in run.models:
        world = len(group.ranks)
        looks = {rank: [r for r in facts.rescaled if r.model == group.number]
                 for rank, facts in group.facts.items()}  # fmt: skip
        looks = {rank: own for rank, own in looks.items() if len(own) >= LEAST_LOOKS}
        if world < 2 or not looks:
            continue
        looked = True
        for factor in (float(world), 1 / world):
            ranks = [r for r, own in looks.items() if _share(own, factor) >= LEAST_SHARE]
            if ranks:
                yield _finding(group, factor, ranks, min(_share(looks[r], factor) for r in ranks))
    if not looked:
        raise NotEnoughData("gradients were not compared before and after what the script does")


def _share(looks: list[Rescaled], factor: float) -> float:
    return sum(_is_by(look, factor) for look in looks) / len(looks)


def _is_by(look: Rescaled, factor: float) -> bool:
    """Whether all were multiplied by it, and not only divided by the batches accumulated."""
    if look.forwards > 1 and abs(look.forwards * factor - 1) < EXACT:
        return False
    return bool(look.ratios) and all(abs(r / factor - 1) < EXACT for r in look.ratios)


def _finding(group: ModelGroup, factor: float, ranks: list[int], share: float) -> Finding:
    world = len(group.ranks)
    grown = factor > 1
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        message=(
            f"between reduction and optimizer step all gradients of {group.label} are "
            f"{'multiplied' if grown else 'divided'} by {world}, the number of ranks, on "
            f"{rank_list(sorted(ranks))}; DDP has averaged them already"
        ),
        fix=(
            "Leave out the all-reduce of gradients, or the factor, after backward: they are the "
            "average over all ranks. If the loss was divided by the samples of all ranks, the "
            "factor is right."
            if grown
            else "Leave out the division by the number of ranks after backward: DDP has done it."
        ),
        culprits=tuple(sorted(ranks)),
        evidence=(
            Evidence("factor", factor, "", 1.0),
            Evidence("looks with it", 100 * share, "%", 100 * LEAST_SHARE),
        ),
    )
