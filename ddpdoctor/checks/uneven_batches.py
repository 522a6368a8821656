"""DD304 uneven-batches: a rank has fewer batches than the others, which then wait for it.

What it measures
    How many batches an epoch the loader of each rank says that it has (`len(loader)`), and how many
    it gave in epochs that came to their end. From this follows the step in which the first rank
    has no batch left, before the job comes to it.

Why it matters
    Each backward reduces gradients over all ranks. The rank that has no batch left never comes to
    that reduction, and the others wait for it until a timeout ends the job. Or its next epoch's
    first step is reduced with the others' last.

What to do
    Give all ranks as many batches: a DistributedSampler does, and so does to stop all ranks after
    the smallest number. Or train within `with model.join():`, for which ranks may have fewer.

When it is wrong
    A script may stop all ranks at the shortest without saying so. That shows only once the job is
    past that step; then this is silent. Loaders that are gone through again and again for a fixed
    number of steps do no harm if the job ends; while it runs they are a warning. Where a
    sampler's settings or the datasets' lengths are the cause, DD303 or DD307 says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.sharding import SharedLoader, all_steps, shared_loaders
from ddpdoctor.analysis.uneven import Course, Uneven, uneven_loaders
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import SHOWN, rank_list

CONFIDENCE = {
    Course.DRIFTS: Confidence.LIKELY,
    Course.WILL_HANG: Confidence.LIKELY,
    Course.HUNG: Confidence.CERTAIN,
    Course.HUNG_LATER: Confidence.CERTAIN,
}


@trace_check("DD304", "uneven-batches")
def uneven_batches(run: Analysis) -> Iterator[Finding]:
    if not any(_is_counted(loader) for loader in shared_loaders(run)):
        raise NotEnoughData("how many batches a loader has was not seen on two ranks")
    for uneven in uneven_loaders(run):
        yield _finding(uneven, run)


def _is_counted(loader: SharedLoader) -> bool:
    said = all(info.length is not None for info in loader.infos.values())
    return said or bool(loader.epochs())


def _finding(uneven: Uneven, run: Analysis) -> Finding:
    others = tuple(rank for rank in uneven.batches if rank not in uneven.short)
    most = max(uneven.batches.values())
    least = " or more" if uneven.at_least else ""
    return Finding(
        severity=Severity.WARNING if uneven.course is Course.DRIFTS else Severity.ERROR,
        confidence=CONFIDENCE[uneven.course],
        message=(
            f"{rank_list(uneven.short)} {_verb(uneven.short)} {uneven.shortest} batches in epoch "
            f"{uneven.epoch} and {rank_list(others)} up to {most}{least}: {_what_happens(uneven)}"
        ),
        fix=(
            "Give all ranks as many batches (a DistributedSampler pads to that, drop_last=True in "
            "it cuts to that), or train within `with model.join():`."
        ),
        culprits=uneven.odd,
        victims=tuple(rank for rank in uneven.batches if rank not in uneven.odd),
        steps=((uneven.step, uneven.step),) if run.steps.counted else all_steps(run),
        evidence=tuple(_evidence(uneven)),
        where=uneven.loader.where(uneven.odd),
    )


def _verb(ranks: tuple[int, ...]) -> str:
    return "gets" if len(ranks) == 1 else "get"


def _what_happens(uneven: Uneven) -> str:
    short = rank_list(uneven.short)
    has_none = "has none left" if len(uneven.short) == 1 else "have none left"
    longer = [rank for rank in uneven.batches if rank not in uneven.short]
    others = "the others wait" if len(longer) > 1 else f"{rank_list(longer)} waits"
    if uneven.course is Course.HUNG:
        return f"in step {uneven.step + 1} {others} for {short}, which {has_none}"
    if uneven.course is Course.HUNG_LATER:
        return (
            f"from step {uneven.step + 1} on steps of different epochs were reduced together, and "
            f"in the end {others} for {short}"
        )
    if uneven.course is Course.DRIFTS:
        return (
            f"from step {uneven.step + 1} on steps of different epochs are reduced together, and "
            "at the last one the job hangs"
        )
    return f"the job will hang in step {uneven.step + 1}, for which {short} {has_none}"


def _evidence(uneven: Uneven) -> Iterator[Evidence]:
    for rank in sorted(uneven.batches)[:SHOWN]:
        least = " at least" if rank in uneven.at_least else ""
        yield Evidence(f"rank {rank}: batches an epoch{least}", uneven.batches[rank])
    for rank in (uneven.short[0], max(uneven.batches, key=lambda r: uneven.batches[r])):
        info = uneven.loader.infos[rank]
        yield Evidence(f"rank {rank}: samples in its dataset", info.dataset_length)
        yield Evidence(f"rank {rank}: batch size", info.batch_size)
