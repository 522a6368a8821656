"""DD306 unsharded-iterable: ranks or workers read the same stream from its beginning.

What it measures
    Hashes of the samples in the first batches of an iterable dataset, by their content: how many
    two ranks have in common, and whether one rank's batches come as often as it has workers.

Why it matters
    A DataLoader does not split an iterable dataset, neither between ranks nor between its workers.
    Each sample is then trained on as many times as there are ranks or workers.

What to do
    Split it by rank and worker: take every n-th item from the k-th on, where n is world size x
    workers and k is rank x workers + `torch.utils.data.get_worker_info().id`. Hugging Face
    datasets have `split_dataset_by_node` for the ranks; their workers split by themselves.

When it is wrong
    Samples that are augmented at random have other contents on each rank and are not told to be the
    same. Data of which most samples are equal (constants, padding alone) is skipped. A stream
    that is short and repeated looks as if workers repeated it only if its batches come in turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.sharding import SharedLoader, all_steps, shared_loaders
from ddpdoctor.checks import NotEnoughData, trace_check
from ddpdoctor.deliveries import StreamedSamples
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.wording import percent, rank_list

LEAST_DISTINCT: Final = 16  # samples; fewer say little of what two ranks share
MOSTLY_DISTINCT: Final = 0.5  # of a rank's samples, each counted once a worker; less is no identity
SHARED_WARNING: Final = 0.05  # of what was seen; a few samples are in many data sets twice
SHARED_ERROR: Final = 0.5
REPEATED_TURNS: Final = 0.8  # of the turns of the workers: the first and last may be cut
LEAST_TURNS: Final = 4


@trace_check("DD306", "unsharded-iterable")
def unsharded_iterable(run: Analysis) -> Iterator[Finding]:
    judged = False
    for loader in shared_loaders(run):
        streams = _streams(loader)
        if len(streams) < 2:
            continue
        judged = True
        ranks, share = _sharing(streams)
        if share >= SHARED_WARNING:
            yield _between_ranks(loader, ranks, share, run)
        repeating = [r for r in streams if _workers_repeat(streams[r], loader.infos[r].workers)]
        if repeating:
            yield _between_workers(loader, tuple(repeating), run)
    if not judged:
        raise NotEnoughData("no iterable dataset whose samples could be told apart on two ranks")


def _streams(loader: SharedLoader) -> dict[int, StreamedSamples]:
    """The first pass of each rank, where its samples are mostly different ones."""
    found = {}
    for trace in loader.traces:
        workers = max(1, trace.loaders[loader.number].workers)
        for stream in trace.streamed:
            if (stream.loader, stream.epoch) != (loader.number, 0):
                continue
            varied = stream.distinct * workers >= MOSTLY_DISTINCT * stream.seen
            if stream.distinct >= LEAST_DISTINCT and varied:
                found[trace.info.rank] = stream
    return found


def _sharing(streams: dict[int, StreamedSamples]) -> tuple[tuple[int, ...], float]:
    """Ranks that share samples with another one, and the largest share of one rank's samples."""
    limit = min(stream.limit for stream in streams.values())
    kept = {
        rank: np.unique([sample for sample in stream.samples if sample < limit])
        for rank, stream in streams.items()
    }
    every = np.concatenate(list(kept.values()))
    values, times = np.unique(every, return_counts=True)
    twice = values[times > 1]
    shares = {
        rank: float(np.isin(own, twice).mean()) if len(own) else 0.0 for rank, own in kept.items()
    }
    ranks = tuple(rank for rank, share in shares.items() if share >= SHARED_WARNING)
    return ranks, max(shares.values())


def _workers_repeat(stream: StreamedSamples, workers: int) -> bool:
    """Workers deliver in turn, so that the same batch comes as often as there are workers."""
    turns = len(stream.batches) // max(1, workers)
    if workers < 2 or turns < LEAST_TURNS:
        return False
    same = sum(
        len(set(stream.batches[turn * workers : (turn + 1) * workers])) == 1
        for turn in range(turns)
    )
    return same >= REPEATED_TURNS * turns


def _between_ranks(
    loader: SharedLoader, ranks: tuple[int, ...], share: float, run: Analysis
) -> Finding:
    dataset = loader.info.dataset
    return Finding(
        severity=Severity.ERROR if share >= SHARED_ERROR else Severity.WARNING,
        confidence=Confidence.CERTAIN if share >= SHARED_ERROR else Confidence.LIKELY,
        message=(
            f"{rank_list(ranks)} read the same samples of {dataset}, an iterable dataset that "
            f"nothing splits: {percent(share)} of what a rank read, another read too"
        ),
        fix=(
            f"In {dataset}.__iter__ let each rank take its own items, as "
            "itertools.islice(items, rank, None, world_size), and with workers split further by "
            "get_worker_info(). If it makes its samples at random, seed that by rank."
        ),
        culprits=ranks,
        steps=all_steps(run),
        evidence=(
            Evidence("samples that another rank read, too", 100 * share, "%", 100 * SHARED_WARNING),
            Evidence("ranks that train together", len(loader.members)),
        ),
        where=loader.where(ranks),
    )


def _between_workers(loader: SharedLoader, ranks: tuple[int, ...], run: Analysis) -> Finding:
    info = loader.infos[ranks[0]]
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=(
            f"the {info.workers} workers of {rank_list(ranks)} deliver the same batches of "
            f"{info.dataset}, an iterable dataset: each comes {info.workers} times"
        ),
        fix=(
            f"In {info.dataset}.__iter__ let each worker take its own items: get_worker_info() "
            "tells its id and how many there are."
        ),
        culprits=ranks,
        steps=all_steps(run),
        evidence=(Evidence("workers of a rank", info.workers),),
        where=loader.where(ranks),
    )
