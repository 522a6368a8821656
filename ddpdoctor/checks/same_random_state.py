"""DD308 same-random-state: ranks draw the same random numbers.

What it measures
    Hashes of the random states of torch, numpy and Python around some batches: before a batch was
    loaded, after it, and after it was trained on. A state that moved was drawn from. And the seed
    from which a loader's workers take their random numbers.

Why it matters
    With the same state, ranks augment their samples in the same way, position by position, and
    drop the same units. The ranks add samples but less variety than as many single batches.

What to do
    Seed by rank once the model is built: `torch.manual_seed(seed + rank)`, and likewise `random`
    and `numpy`, or give the DataLoader `generator=torch.Generator().manual_seed(seed + rank)`. The
    sampler keeps the same seed on all ranks.

When it is wrong
    Numbers that the ranks must agree on, as for a shuffle before the data is split, have to be the
    same: only loaders with a sampler of torch are judged. With workers it is *likely*: the samples
    change from epoch to epoch, and a dataset may take its numbers from elsewhere. The same numbers
    in the training itself (dropout, noise) are info, for most jobs do not suffer from them;
    where noise is what is learnt from, as in diffusion, it is a fault.
    Generators on a GPU are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ddpdoctor.analysis.items import are_random
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.randomness import (
    Looks,
    load_alike,
    looks_of,
    same_worker_seeds,
    train_alike,
)
from ddpdoctor.analysis.sharding import SharedLoader, all_steps, shared_loaders
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import rank_list

TORCHS_SAMPLERS: Final = ("DistributedSampler", "RandomSampler", "SequentialSampler")
LOOKED_INTO: Final = 8  # ranks; whether samples are augmented is the same on all


@trace_check("DD308", "same-random-state")
def same_random_state(run: Analysis) -> Iterator[Finding]:
    judged = in_training = False
    for loader in shared_loaders(run):
        looks = looks_of(loader)
        judged |= len(looks) > 1
        if loader.info.sampler in TORCHS_SAMPLERS:
            if loader.info.workers:
                yield from _workers(loader, run)
            else:
                yield from _in_process(loader, looks, run)
        for found in () if in_training else _in_training(loader, looks, run):
            in_training = True  # the model is the same with each loader
            yield found
    if not judged:
        raise NotEnoughData("the random states of two ranks were not seen around the same batches")


def _in_process(loader: SharedLoader, looks: Looks, run: Analysis) -> Iterator[Finding]:
    found = list(load_alike(looks))
    if found:
        names = ", ".join(generator for generator, _ in found)
        ranks = found[0][1]
        yield _finding(
            loader,
            ranks,
            f"{rank_list(ranks)} draw the same random numbers while they load their batches",
            Evidence("generators drawn from in the same state", names),
            run,
        )


def _workers(loader: SharedLoader, run: Analysis) -> Iterator[Finding]:
    ranks = same_worker_seeds(loader)
    if ranks and any(are_random(trace, loader.number) for trace in loader.traces[:LOOKED_INTO]):
        found = _finding(
            loader,
            ranks,
            f"the workers of {rank_list(ranks)} have the same random seeds, and their samples are "
            "augmented at random",
            Evidence("workers of a rank", loader.info.workers),
            run,
        )
        yield replace(found, confidence=Confidence.LIKELY)


def _in_training(loader: SharedLoader, looks: Looks, run: Analysis) -> Iterator[Finding]:
    found = list(train_alike(looks))
    if found:
        names = ", ".join(generator for generator, _ in found)
        ranks = found[0][1]
        message = f"{rank_list(ranks)} draw the same random numbers in training (dropout, noise)"
        evidence = Evidence("generators drawn from in the same state", names)
        yield replace(_finding(loader, ranks, message, evidence, run), severity=Severity.INFO)


def _finding(
    loader: SharedLoader,
    ranks: tuple[int, ...],
    message: str,
    evidence: Evidence,
    run: Analysis,
) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        message=message,
        fix=(
            "Seed by rank after the model is built: torch.manual_seed(seed + rank), and likewise "
            "random.seed and numpy.random.seed. Keep the seed of the sampler the same."
        ),
        culprits=ranks,
        steps=all_steps(run),
        evidence=(evidence,),
        where=loader.where(ranks),
    )
