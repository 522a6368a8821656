"""Loaders that give some ranks fewer batches than others, and the step at which that hangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.sharding import SharedLoader, mismatches, shared_loaders
from ddpdoctor.deliveries import LoaderEpoch
from ddpdoctor.events import Flag


class Course(IntEnum):
    """What became of a job whose loaders differ."""

    FINE = 0  # it went past that step on all ranks and ended
    DRIFTS = 1  # it went past that step, some ranks an epoch ahead
    WILL_HANG = 2
    HUNG = 3  # a rank's loader ended, and others began a step more
    HUNG_LATER = 4  # as DRIFTS, and in the end others began a step more


@dataclass(frozen=True)
class Uneven:
    """`batches` an epoch of each rank; of those with `at_least` it may be more."""

    loader: SharedLoader
    epoch: int
    batches: dict[int, int]
    at_least: frozenset[int]
    shortest: int
    step: int  # synchronised backwards after which the shortest has no batch left
    course: Course

    @property
    def short(self) -> tuple[int, ...]:
        return tuple(rank for rank, count in self.batches.items() if count == self.shortest)

    @property
    def odd(self) -> tuple[int, ...]:
        """Ranks that have not as many as most have: one may have too many. Else the shortest."""
        most, ranks = Counter(self.batches.values()).most_common(1)[0]
        if 2 * ranks <= len(self.batches):
            return self.short
        return tuple(rank for rank, count in self.batches.items() if count != most)


def uneven_loaders(run: Analysis) -> Iterator[Uneven]:
    """Loaders of different length, but for those whose sampler or dataset is the cause."""
    explained = {loader.number for loader, _ in mismatches(run)}
    for loader in shared_loaders(run):
        joined = any(info.joined for info in loader.infos.values())
        if loader.number in explained or joined or loader.splits_other_lengths:
            continue
        found = _first_uneven(loader, run)
        if found is not None and found.course is not Course.FINE:
            yield found


def out_of_batches(run: Analysis) -> frozenset[int]:
    """Ranks that others wait for since they have no batch left; DD304 says so, and why."""
    over = (Course.HUNG, Course.HUNG_LATER)
    return frozenset(
        rank for found in uneven_loaders(run) if found.course in over for rank in found.short
    )


def _first_uneven(loader: SharedLoader, run: Analysis) -> Uneven | None:
    passes = _passes(loader)
    for epoch in _judged(loader, passes, run):
        own = passes[epoch]
        batches, at_least = _batches(loader, own, first=epoch == min(passes))
        known = {rank: n for rank, n in batches.items() if rank not in at_least}
        if len(batches) < len(loader.traces) or not known:
            continue
        shortest = min(known.values())
        if _began_alone(loader, run) and _syncs(loader) >= _first_sync(own) + shortest:
            batches |= {rank: max(batches[rank], shortest + 1) for rank in at_least}
        if all(count <= shortest for count in batches.values()):
            continue
        short = next(rank for rank, count in known.items() if count == shortest)
        step = _first_sync(own) + shortest // _batches_per_step(own.get(short))
        course = _course(loader, passes, epoch, step, run)
        return Uneven(loader, epoch, batches, at_least, shortest, step, course)
    return None


def _judged(
    loader: SharedLoader, passes: dict[int, dict[int, LoaderEpoch]], run: Analysis
) -> list[int]:
    """The first epoch, all that came to their end, and the last where the job stopped in it.

    There some ranks came to the end, and others began a step more.
    """
    first, *later = sorted(passes)
    stopped = any(each.ended for each in passes[later[-1]].values()) if later else False
    stopped = stopped and _began_alone(loader, run)
    return [first, *(e for e in later if _ended(passes[e]) or (stopped and e == later[-1]))]


def _passes(loader: SharedLoader) -> dict[int, dict[int, LoaderEpoch]]:
    """What was recorded of each epoch, by rank; of the first although nothing was yet."""
    found: dict[int, dict[int, LoaderEpoch]] = {0: {}}
    found |= loader.epochs()
    if not found[0]:
        for trace in loader.traces:
            for each in trace.epochs:
                if (each.loader, each.epoch) == (loader.number, 0):
                    found[0][trace.info.rank] = each
    return found


def _ended(passes: dict[int, LoaderEpoch]) -> bool:
    return all(each.ended for each in passes.values())


def _batches(
    loader: SharedLoader, passes: dict[int, LoaderEpoch], *, first: bool
) -> tuple[dict[int, int], frozenset[int]]:
    """As counted where a rank came to the end, else as its loader says; which are only a least."""
    batches, at_least = {}, set()
    for rank, info in loader.infos.items():
        own = passes.get(rank)
        if own is not None and own.ended:
            batches[rank] = own.batches
        elif first and info.length is not None and (own is None or own.batches <= info.length):
            batches[rank] = info.length
        elif own is not None:
            batches[rank] = own.batches
            at_least.add(rank)
    return batches, frozenset(at_least)


def _first_sync(passes: dict[int, LoaderEpoch]) -> int:
    return min((each.first_sync for each in passes.values()), default=0)


def _batches_per_step(own: LoaderEpoch | None) -> int:
    """More than one where gradients are accumulated."""
    if own is None:
        return 1
    trained = own.batches if own.ended else own.batches - 1
    steps = own.last_sync - own.first_sync
    return max(1, round(trained / steps)) if steps > 0 else 1


def _course(
    loader: SharedLoader,
    passes: dict[int, dict[int, LoaderEpoch]],
    epoch: int,
    step: int,
    run: Analysis,
) -> Course:
    alone = _began_alone(loader, run)
    if all(trace.came_through for trace in loader.traces) and not alone:
        return Course.FINE
    following = passes.get(epoch + 1, {})
    if len(following) == len(loader.traces) and _syncs(loader) > step:
        begins = {each.first_sync for each in following.values()}
        if len(begins) == 1:
            return Course.FINE
        ended = all(t.closed for t in loader.traces) or any(t.stall for t in loader.traces)
        return Course.HUNG_LATER if alone and ended else Course.DRIFTS
    if _syncs(loader) > step:
        return Course.FINE
    own = passes.get(epoch, {})
    over = any(each.ended for each in own.values())
    return Course.HUNG if alone and over else Course.WILL_HANG


def _syncs(loader: SharedLoader) -> int:
    """Synchronised backwards that all ranks have behind them."""
    return min(int(trace.detail["sync"].max(initial=0)) for trace in loader.traces)


def _began_alone(loader: SharedLoader, run: Analysis) -> bool:
    """Whether a rank's last gradient reduction is one that others never came to.

    Or all stand in one number, and not all of them in a call of the training.
    """
    if any(set(call.ranks) & set(loader.ranks) for each in run.mixed for call in each.calls):
        return True
    calls = run.tables.calls
    for rank in loader.ranks:
        flags, arrival = calls.recorded_of(rank, "flags", "arrival_ns")
        buckets = np.flatnonzero(flags & int(Flag.BUCKET))
        if len(buckets):
            last = int(buckets[arrival[buckets].argmax()])
            if not calls.of_rank(rank)["complete"].iloc[last]:
                return True
    return False
