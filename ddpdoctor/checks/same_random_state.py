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

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Final

from ddpdoctor.analysis.items import are_random
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.sharding import SharedLoader, all_steps, shared_loaders
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.deliveries import RANDOM_GENERATORS, Hashes, RandomStates
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import rank_list

TORCHS_SAMPLERS: Final = ("DistributedSampler", "RandomSampler", "SequentialSampler")
LEAST_LOOKS: Final = 2  # at which the state moved; once may be a warm-up
LOOKED_INTO: Final = 8  # ranks; whether samples are augmented is the same on all
_Looks = dict[int, dict[tuple[int, int], RandomStates]]  # by rank, then by epoch and batch


@trace_check("DD308", "same-random-state")
def same_random_state(run: Analysis) -> Iterator[Finding]:
    judged = in_training = False
    for loader in shared_loaders(run):
        looks = _looks(loader)
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


def _looks(loader: SharedLoader) -> _Looks:
    found: _Looks = defaultdict(dict)
    for trace in loader.traces:
        for look in trace.random_states:
            if look.loader == loader.number:
                found[trace.info.rank][look.epoch, look.batch] = look
    return found


def _drawing_alike(
    looks: _Looks, begin: Callable[[RandomStates], Hashes], end: Callable[[RandomStates], Hashes]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """By generator: ranks that drew from the same state at two looks or more."""
    for number, generator in enumerate(RANDOM_GENERATORS):
        times: dict[int, int] = defaultdict(int)
        for at in {at for own in looks.values() for at in own}:
            same: dict[Hashable, list[int]] = defaultdict(list)
            for rank, own in looks.items():
                if at in own:
                    before, after = begin(own[at])[number], end(own[at])[number]
                    if before is not None and after is not None and before != after:
                        same[before, after].append(rank)
            for ranks in same.values():
                for rank in ranks if len(ranks) > 1 else ():
                    times[rank] += 1
        ranks_alike = tuple(sorted(rank for rank, count in times.items() if count >= LEAST_LOOKS))
        if len(ranks_alike) > 1:
            yield generator, ranks_alike


def _in_process(loader: SharedLoader, looks: _Looks, run: Analysis) -> Iterator[Finding]:
    found = list(_drawing_alike(looks, lambda look: look.asked, lambda look: look.delivered))
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
    for epochs in loader.epochs().values():
        same: dict[int, list[int]] = defaultdict(list)
        for rank, epoch in epochs.items():
            if epoch.base_seed is not None:
                same[epoch.base_seed].append(rank)
        ranks = tuple(rank for alike in same.values() if len(alike) > 1 for rank in alike)
        if ranks and any(are_random(trace, loader.number) for trace in loader.traces[:LOOKED_INTO]):
            found = _finding(
                loader,
                tuple(sorted(ranks)),
                f"the workers of {rank_list(sorted(ranks))} have the same random seeds, and their "
                "samples are augmented at random",
                Evidence("workers of a rank", loader.info.workers),
                run,
            )
            yield replace(found, confidence=Confidence.LIKELY)
            return


def _in_training(loader: SharedLoader, looks: _Looks, run: Analysis) -> Iterator[Finding]:
    found = list(_drawing_alike(looks, lambda look: look.delivered, lambda look: look.trained))
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
