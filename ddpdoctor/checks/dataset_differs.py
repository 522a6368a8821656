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
    their own need no equal ones. *Certain*: lengths, or samples that stay the same in all epochs.
    *Likely*: only the lists differ. Samples that are augmented at random cannot be compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

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
        lists = _differing_list(loader)
        judged |= items is not Items.UNKNOWN or lists is not None
        if items is Items.OTHER or (lists and items is Items.UNKNOWN):
            yield _other_order(loader, items, lists or "", run)
    if not judged and loaders:
        raise NotEnoughData("what the ranks' datasets hold could not be compared")
    if not loaders:
        raise NotEnoughData("no dataset is split between ranks by a sampler that knows them")


def _differing_list(loader: SharedLoader) -> str | None:
    """Name of a list that the ranks' datasets hold differently; "" if all are equal, None if none.

    Lists that every rank has are compared.
    """
    infos = list(loader.infos.values())
    common = [name for name in infos[0].holdings if all(name in info.holdings for info in infos)]
    if not common:
        return None
    differing = [name for name in common if len({info.holdings[name] for info in infos}) > 1]
    return differing[0] if differing else ""


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


def _other_order(loader: SharedLoader, items: Items, name: str, run: Analysis) -> Finding:
    values = {rank: info.holdings.get(name) for rank, info in loader.infos.items()}
    culprits = minority(values) if name else loader.ranks[:MOST_RANKS]
    seen = items is Items.OTHER
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
            *([Evidence("list that differs", name)] if name else []),
            *([Evidence("orders", len(Counter(values.values())))] if name else []),
            Evidence("delivered samples", "differ" if seen else "could not be compared"),
        ),
        where=loader.where(culprits),
    )
