"""DD307 dataset-differs: ranks split a dataset that is not the same on all of them.

What it measures
    Where a sampler splits one dataset between the ranks: its length on each; what the lists that it
    holds (of paths, labels, indices) contain at some positions; and, over the epochs, whether equal
    indices are equal samples on the ranks, and samples of one rank turn up at other indices on
    another.

Why it matters
    A sampler deals out indices. If index 7 is another sample on each rank, some samples are
    trained on twice and others never. With other lengths the ranks have other numbers of batches,
    too, and the job hangs at the end of an epoch.

What to do
    Build the dataset the same on all ranks: sort what `glob` or `os.listdir` give, and shuffle or
    split with a generator of one seed. Or build it on rank 0 and have the others read it.

When it is wrong
    Only datasets that a sampler with `num_replicas` splits are compared: ranks that read shards of
    their own need no equal ones. *Certain*: lengths, or samples that were seen at other indices on
    another rank. *Likely*: a list holds the same items in another order. Where ranks hold wholly
    other samples it is info: data made at random for a test look so, as do shards that are split
    once more. Samples that are augmented at random cannot be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from ddpdoctor.analysis.items import MOST_RANKS, Items, compare
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.randomness import load_alike, looks_of, same_worker_seeds
from ddpdoctor.analysis.sharding import (
    SharedLoader,
    all_steps,
    batches_evidence,
    minority,
    mismatches,
    shared_loaders,
)
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import SHOWN, rank_list

_SAME_LIST: Final = (
    "Build it from the same list in the same order on every rank. If each rank is meant to "
    "have data of its own, leave the sampler away: it takes only a part of them."
)
_AT_RANDOM: Final = (
    "Each rank split the dataset by its own random numbers, so that samples held back for "
    "validation on one rank are trained on by another. Give the split a seed of its own: "
    "random_split(dataset, lengths, generator=torch.Generator().manual_seed(0))."
)


@trace_check("DD307", "dataset-differs")
def dataset_differs(run: Analysis) -> Iterator[Finding]:
    explained = {loader.number for loader, _ in mismatches(run)}
    loaders = [one for one in shared_loaders(run) if one.is_split_by_sampler]
    judged = False
    for loader in loaders:
        if loader.number in explained:
            continue
        if loader.splits_other_lengths:
            judged = True
            yield _other_length(loader, run)
            continue
        drawn_alike = bool(same_worker_seeds(loader) or list(load_alike(looks_of(loader))))
        items = compare(loader.traces, loader.number, drawn_alike=drawn_alike)
        lists = _lists(loader)
        judged |= items is not Items.UNKNOWN or lists is not Lists.UNKNOWN
        if items is Items.MOVED or (lists is Lists.REORDERED and items is not Items.SAME):
            yield _other_order(loader, items, run)
        elif items is Items.OTHER or (lists >= Lists.OTHER and items is Items.UNKNOWN):
            yield _other_samples(loader, lists, run)
    if not judged and loaders:
        raise NotEnoughData("what the ranks' datasets hold could not be compared")
    if not loaders:
        raise NotEnoughData("no dataset is split between ranks by a sampler that knows them")


class Lists(IntEnum):
    """What the lists of the ranks' datasets, as far as all ranks have them, say together."""

    UNKNOWN = 0
    SAME = 1
    OTHER = 2  # they hold other items
    DIFFER = 3  # other items, or the same in another order
    REORDERED = 4


def _lists(loader: SharedLoader) -> Lists:
    names = _common_lists(loader)
    return max((_list(loader, name) for name in names), default=Lists.UNKNOWN)


def _common_lists(loader: SharedLoader) -> list[str]:
    infos = list(loader.infos.values())
    return [name for name in infos[0].holdings if all(name in info.holdings for info in infos)]


def _lists_that_differ(loader: SharedLoader) -> list[str]:
    return [name for name in _common_lists(loader) if _list(loader, name) is not Lists.SAME]


def _list(loader: SharedLoader, name: str) -> Lists:
    held = [info.holdings[name] for info in loader.infos.values()]
    if len({each.in_order for each in held}) == 1:
        return Lists.SAME
    sums = {each.in_any for each in held}
    if None in sums:
        return Lists.DIFFER
    return Lists.REORDERED if len(sums) == 1 else Lists.OTHER


def _other_length(loader: SharedLoader, run: Analysis) -> Finding:
    lengths = {rank: info.dataset_length for rank, info in loader.infos.items()}
    culprits = minority(lengths)
    shown = sorted({length for length in lengths.values() if length is not None})
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=(
            f"{loader.info.dataset} has {shown[0]} samples on some ranks and {shown[-1]} on others "
            f"({rank_list(culprits)}), and a {loader.info.sampler} splits it between them"
        ),
        fix=(
            "Build it from the same list on every rank: sorted file names, one seed for random "
            "splits, or built on rank 0 and read by the others."
        ),
        culprits=culprits,
        steps=all_steps(run),
        evidence=(
            *(Evidence(f"rank {r}: samples", lengths[r]) for r in sorted(lengths)[:SHOWN]),
            *batches_evidence(loader),
        ),
        where=loader.where(culprits),
    )


def _other_order(loader: SharedLoader, items: Items, run: Analysis) -> Finding:
    names = _lists_that_differ(loader)
    culprits = _with_another_list(loader, names)
    seen = items is Items.MOVED
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if seen else Confidence.LIKELY,
        message=(
            f"{loader.info.dataset} holds its samples in another order on {rank_list(culprits)}, "
            f"and a {loader.info.sampler} splits it by index: some samples are trained on by "
            "several ranks and others by none"
        ),
        fix=(
            "Give every rank the same order: sort file names, and shuffle with a generator of one "
            "seed (random.Random(0).shuffle) or leave shuffling to the sampler."
        ),
        culprits=culprits,
        steps=all_steps(run),
        evidence=(
            Evidence("samples in the dataset", loader.info.dataset_length),
            *(Evidence("list that differs", name) for name in names[:1]),
            Evidence("delivered samples", "the same at other indices" if seen else "not compared"),
        ),
        where=loader.where(culprits),
    )


def _other_samples(loader: SharedLoader, lists: Lists, run: Analysis) -> Finding:
    """Not known to do harm: data made at random differ so, too, and shards that are split again."""
    names = _lists_that_differ(loader)
    culprits = _with_another_list(loader, names)
    unknown = lists is Lists.DIFFER
    return Finding(
        severity=Severity.WARNING if unknown else Severity.INFO,
        confidence=Confidence.POSSIBLE,
        message=(
            f"{loader.info.dataset} holds other samples at the same indices on "
            f"{rank_list(culprits)}, and a {loader.info.sampler} splits it by index"
            + (": it may be in another order there" if unknown else "")
        ),
        fix=_AT_RANDOM if _is_split_at_random(loader, names) else _SAME_LIST,
        culprits=culprits,
        steps=all_steps(run),
        evidence=(
            Evidence("samples in the dataset", loader.info.dataset_length),
            *(Evidence("list that differs", name) for name in names[:1]),
        ),
        where=loader.where(culprits),
    )


def _is_split_at_random(loader: SharedLoader, names: list[str]) -> bool:
    """As `random_split` leaves it: a Subset whose own indices differ."""
    return loader.info.dataset == "Subset" and "indices" in names


def _with_another_list(loader: SharedLoader, names: list[str]) -> tuple[int, ...]:
    if not names:
        return loader.ranks[:MOST_RANKS]
    return minority({rank: info.holdings[names[0]] for rank, info in loader.infos.items()})
