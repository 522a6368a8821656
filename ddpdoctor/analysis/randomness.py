"""Which ranks draw the same random numbers, as their states around some batches tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from ddpdoctor.analysis.sharding import SharedLoader
from ddpdoctor.deliveries import RANDOM_GENERATORS, Hashes, RandomStates

LEAST_LOOKS: Final = 2  # at which the state moved; once may be a warm-up
Looks = dict[int, dict[tuple[int, int], RandomStates]]  # by rank, then by epoch and batch


def load_alike(looks: Looks) -> Iterator[tuple[str, tuple[int, ...]]]:
    """By generator, the ranks that draw the same numbers while they load."""
    return _drawing_alike(looks, lambda look: look.asked, lambda look: look.delivered)


def train_alike(looks: Looks) -> Iterator[tuple[str, tuple[int, ...]]]:
    """By generator, the ranks that draw the same numbers while they train."""
    return _drawing_alike(looks, lambda look: look.delivered, lambda look: look.trained)


def same_worker_seeds(loader: SharedLoader) -> tuple[int, ...]:
    """Ranks whose workers begin an epoch with another rank's seeds; none without workers."""
    if not loader.info.workers:
        return ()
    for epochs in loader.epochs().values():
        same: dict[int, list[int]] = defaultdict(list)
        for rank, epoch in epochs.items():
            if epoch.base_seed is not None:
                same[epoch.base_seed].append(rank)
        ranks = sorted(rank for alike in same.values() if len(alike) > 1 for rank in alike)
        if ranks:
            return tuple(ranks)
    return ()


def looks_of(loader: SharedLoader) -> Looks:
    """Looks at the random states around batches of this loader."""
    found: Looks = defaultdict(dict)
    for trace in loader.traces:
        for look in trace.random_states:
            if look.loader == loader.number:
                found[trace.info.rank][look.epoch, look.batch] = look
    return found


def _drawing_alike(
    looks: Looks, begin: Callable[[RandomStates], Hashes], end: Callable[[RandomStates], Hashes]
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
