"""What is said of numbers of ranks that do not belong where they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.modelevents import Gathered, Loss
from ddpdoctor.wording import printable, rank_list

if TYPE_CHECKING:
    from ddpdoctor.analysis.exchanges import Regrown, SummedNorm
    from ddpdoctor.analysis.replicas import ModelGroup
    from ddpdoctor.events import Site


def rescaled_by_ranks(
    group: ModelGroup, factor: float, ranks: Sequence[int], share: tuple[float, float]
) -> Finding:
    """`share` of the looks at which it is so, and the least that counts."""
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
            Evidence("looks with it", 100 * share[0], "%", 100 * share[1]),
        ),
    )


def loss_times_ranks(group: ModelGroup, losses: Mapping[int, Sequence[Loss]]) -> Finding:
    """`losses` by rank: those that are a mean times the number of ranks."""
    world = len(group.ranks)
    where = {rank: own[-1].site for rank, own in losses.items()}
    named = any(where.values())
    return Finding(
        severity=Severity.WARNING if named else Severity.INFO,
        confidence=Confidence.LIKELY if named else Confidence.POSSIBLE,
        message=(
            f"the loss of {group.label}, which each rank averages over its own samples, is "
            f"multiplied by {world}, "
            + (
                "the number of ranks, although DDP averages over the ranks: gradients are "
                f"{world} times too large"
                if named
                else "as many as there are ranks"
            )
        ),
        fix=(
            f"Leave out the factor{'' if named else ', if it is the number of ranks'}: DDP "
            "averages the ranks' gradients, and the average needs none. A sum of losses that is "
            "divided by the samples of all ranks does."
        ),
        culprits=tuple(sorted(losses)),
        evidence=(
            Evidence("factor of the loss", float(world), "", 1.0),
            Evidence("losses looked at with it", min(map(len, losses.values()))),
        ),
        where=_places(where),
    )


def norm_summed(norm: SummedNorm) -> Finding:
    world = len(norm.line.ranks)
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        message=(
            f"before the optimizer step a number that is the same on {rank_list(norm.line.ranks)} "
            f"is summed over them{_at(norm.line.site)}, and gradients are clipped by it: a norm of "
            f"averaged gradients is that of all ranks already, and its square becomes {world} "
            "times too large"
        ),
        fix=(
            "Leave out this all-reduce: after backward the local norm is the global one on every "
            "rank, as `torch.nn.utils.clip_grad_norm_` takes it. Only a sum that is divided by "
            "the number of ranks again does no harm."
        ),
        culprits=norm.line.ranks,
        evidence=(
            Evidence("looks at which all ranks gave the same number", norm.looks),
            Evidence("the number, at the last", norm.value),
            Evidence("what gradients were multiplied by then", norm.ratio, "", 1.0),
        ),
        where=norm.line.where,
    )


def total_regrown(total: Regrown) -> Finding:
    world = len(total.line.ranks)
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        message=(
            f"a total is summed over {rank_list(total.line.ranks)} in place at each "
            f"call{_at(total.line.site)}, with the last sum still in it: it grows {world} times "
            "each time"
        ),
        fix=(
            "Sum a copy (`total.clone()`) and go on counting in the total itself, or reset it "
            "after each reduction."
        ),
        culprits=total.line.ranks,
        evidence=(
            Evidence("looks at which the last sum was given again", total.looks),
            Evidence("the largest of them", total.value),
        ),
        where=total.line.where,
    )


def gathered_without_gradient(
    gathers: Mapping[int, Sequence[Gathered]], least: int
) -> Iterator[Finding]:
    """Lines at which every rank gathers so, at as many looks as are needed."""
    counts = {rank: Counter(own.site for own in looks) for rank, looks in gathers.items()}
    sites = [site for site in next(iter(counts.values()), Counter()) if site is not None]
    for site in sites:
        if len(counts) > 1 and all(own[site] >= least for own in counts.values()):
            shapes = [own.shape for looks in gathers.values() for own in looks if own.site == site]
            yield _of_gather(tuple(sorted(counts)), site, shapes[-1])


def _of_gather(ranks: tuple[int, ...], site: Site, shape: str) -> Finding:
    return Finding(
        severity=Severity.INFO,
        confidence=Confidence.POSSIBLE,
        message=(
            f"a tensor of {shape} that requires a gradient is gathered{_at(site)} between forward "
            "and backward by an all_gather, whose result carries none: where the loss uses it, no "
            "gradient reaches the ranks that made the other parts, nor this rank's own"
        ),
        fix=(
            "If the loss is to reach them, gather with a gradient (by an autograd function, as "
            "`torch.distributed.nn.functional` has it), or put this rank's own part back into "
            "its place; to see what it changes, compare with one process and the whole batch. What "
            "is only counted: gather `tensor.detach()`."
        ),
        culprits=ranks,
        evidence=(Evidence("gathered without gradient", shape),),
        where=_places(dict.fromkeys(ranks, site)),
    )


def _at(site: Site | None) -> str:
    return "" if site is None else printable(f" ({site.file.rsplit('/', 1)[-1]}:{site.line})")


def _places(sites: Mapping[int, Site | None]) -> tuple[Location, ...]:
    return tuple(
        Location(rank, site.file, site.line, site.function)
        for rank, site in sorted(sites.items())
        if site is not None
    )
