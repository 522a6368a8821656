"""Which ranks share a loader, and what their samplers say of how it is split between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.overlap import Contents, overlaps
from ddpdoctor.deliveries import LoaderEpoch
from ddpdoctor.events import LoaderInfo
from ddpdoctor.findings import Evidence, Location
from ddpdoctor.tracefile import RankTrace
from ddpdoctor.wording import SHOWN

MOST_EPOCHS = 16  # of one loader that are looked at; the recorder keeps a few more in a long run


@dataclass(frozen=True)
class SharedLoader:
    """One loader on the ranks that reduce gradients together, in the order of ranks.

    `members` are all ranks of their group; those that did not record the loader are not in
    `traces`.
    """

    number: int
    members: tuple[int, ...]
    traces: tuple[RankTrace, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(trace.info.rank for trace in self.traces)

    @property
    def infos(self) -> dict[int, LoaderInfo]:
        return {trace.info.rank: trace.loaders[self.number] for trace in self.traces}

    @property
    def info(self) -> LoaderInfo:
        """As the first rank has it."""
        return self.traces[0].loaders[self.number]

    @property
    def is_whole(self) -> bool:
        """Whether every rank of the group recorded it."""
        return len(self.traces) == len(self.members)

    @property
    def is_split_by_sampler(self) -> bool:
        """Whether a sampler that knows the ranks splits one dataset between them."""
        return all(info.sampler_replicas is not None for info in self.infos.values())

    @property
    def splits_other_lengths(self) -> bool:
        """Whether it splits datasets of different length, so that the parts fit nowhere."""
        lengths = {info.dataset_length for info in self.infos.values()}
        return self.is_split_by_sampler and None not in lengths and len(lengths) > 1

    def epochs(self) -> dict[int, dict[int, LoaderEpoch]]:
        """What each rank delivered, by epoch and rank; only epochs that all of them recorded."""
        found: dict[int, dict[int, LoaderEpoch]] = defaultdict(dict)
        for trace in self.traces:
            for epoch in trace.epochs:
                if epoch.loader == self.number:
                    found[epoch.epoch][trace.info.rank] = epoch
        whole = [number for number in sorted(found) if len(found[number]) == len(self.traces)]
        return {number: found[number] for number in whole[:MOST_EPOCHS]}

    def where(self, ranks: Sequence[int]) -> tuple[Location, ...]:
        """Where these ranks iterate it; of many ranks the first, since the line is the same."""
        infos = self.infos
        return tuple(
            Location(rank, site.file, site.line, site.function)
            for rank in ranks[:SHOWN]
            if (site := infos[rank].site) is not None
        )


def shared_loaders(run: Analysis) -> list[SharedLoader]:
    """Every loader that two or more ranks of one group recorded."""
    by_rank = {trace.info.rank: trace for trace in run.run.ranks}
    found = []
    for members in _groups(run):
        traces = [by_rank[rank] for rank in members if rank in by_rank]
        for number in sorted({number for trace in traces for number in trace.loaders}):
            with_it = [trace for trace in traces if number in trace.loaders]
            alike: dict[object, list[RankTrace]] = defaultdict(list)
            for trace in with_it:  # ranks number their loaders each for itself, in order of use
                info = trace.loaders[number]
                alike[info.site, info.dataset].append(trace)
            found += [
                SharedLoader(number, members, tuple(same))
                for same in alike.values()
                if len(same) > 1
            ]
    return found


def _groups(run: Analysis) -> list[tuple[int, ...]]:
    """Groups over which models reduce their gradients; none is part of another one.

    Ranks that split a model between them may well be given the same samples.
    """
    ranks = {group.ranks for trace in run.run.ranks for group in trace.ddp_groups}
    if not ranks:
        return [tuple(range(run.world_size))]
    known = [tuple(sorted(set(members))) for members in ranks]
    largest_first = sorted(set(known), key=lambda members: (-len(members), members))
    kept: list[tuple[int, ...]] = []
    covered: dict[int, list[set[int]]] = defaultdict(list)
    for members in largest_first:
        own = set(members)
        if any(own <= other for other in covered[members[0]]):
            continue
        kept.append(members)
        for rank in members:
            covered[rank].append(own)
    return kept


@dataclass(frozen=True)
class Mismatch:
    """A setting of the ranks' samplers that does not split the dataset between them."""

    setting: str  # what is wrong: "num_replicas", "rank", "seed", "shuffle" or "epoch"
    culprits: tuple[int, ...]
    values: dict[int, Hashable]  # by rank

    @property
    def may_be_meant(self) -> bool:
        return self.setting in ("num_replicas", "rank")


def mismatch(loader: SharedLoader, world_size: int) -> Mismatch | None:
    """The first setting that is wrong, of samplers that know their rank and how many there are."""
    infos = loader.infos
    if not any(info.sampler_replicas is not None for info in infos.values()):
        return None
    replicas = {rank: info.sampler_replicas for rank, info in infos.items()}
    allowed = {len(loader.members), world_size}
    wrong = tuple(rank for rank, count in replicas.items() if count not in allowed)
    if wrong or len(set(replicas.values())) > 1:
        return Mismatch("num_replicas", wrong or minority(replicas), dict(replicas))
    repeated = _same_rank_as_another(loader)
    if repeated:
        return Mismatch("rank", repeated, {rank: info.sampler_rank for rank, info in infos.items()})
    settings: dict[str, Callable[[LoaderInfo], Hashable]] = {
        "shuffle": lambda info: info.shuffle,
        "seed": lambda info: info.seed,
    }
    for name, of in settings.items():
        values = {rank: of(info) for rank, info in infos.items()}
        shuffles = any(info.shuffle is not False for info in infos.values())
        if len(set(values.values())) > 1 and (name == "shuffle" or shuffles):
            return Mismatch(name, minority(values), values)
    return _other_epochs(loader)


def mismatches(run: Analysis) -> Iterator[tuple[SharedLoader, Mismatch]]:
    """Every loader whose samplers do not split it. Nodes that read data of their own may differ."""
    for loader in shared_loaders(run):
        found = mismatch(loader, run.world_size)
        if found is not None and not (found.may_be_meant and _reads_own_data(loader, run)):
            yield loader, found


def _reads_own_data(loader: SharedLoader, run: Analysis) -> bool:
    """Whether equal indices are different samples on the ranks that drew them."""
    seen = [
        overlap.contents
        for overlap in overlaps(loader.traces, run.world_size)
        if overlap.loader == loader.number and overlap.compared
    ]
    return bool(seen) and all(contents is Contents.DIFFERENT for contents in seen)


def _same_rank_as_another(loader: SharedLoader) -> tuple[int, ...]:
    """Ranks whose sampler has the rank of another's; of two that do, the one with a wrong one."""
    infos = loader.infos
    times = Counter(info.sampler_rank for info in infos.values())
    twice = [rank for rank, info in infos.items() if times[info.sampler_rank] > 1]
    wrong = [
        rank for rank in twice if infos[rank].sampler_rank not in {rank, loader.members.index(rank)}
    ]
    return tuple(wrong or twice)


def _other_epochs(loader: SharedLoader) -> Mismatch | None:
    if not all(info.shuffle for info in loader.infos.values()):
        return None
    for epochs in loader.epochs().values():
        told: dict[int, Hashable] = {rank: e.sampler_epoch for rank, e in epochs.items()}
        if len(set(told.values())) > 1:
            return Mismatch("epoch", minority(told), told)
    return None


def minority(values: Mapping[int, Hashable]) -> tuple[int, ...]:
    """Ranks whose value is not the most frequent one; all where several are equally frequent."""
    times = Counter(values.values()).most_common()
    if len(times) > 1 and times[0][1] == times[1][1]:
        return tuple(values)
    return tuple(rank for rank, value in values.items() if value != times[0][0])


def batches_evidence(loader: SharedLoader) -> list[Evidence]:
    """Each rank's batches an epoch, where they differ: the job then hangs at the shortest's end."""
    lengths = {rank: info.length for rank, info in loader.infos.items()}
    if len(set(lengths.values())) < 2:
        return []
    return [
        Evidence(f"rank {rank}: batches an epoch", lengths[rank])
        for rank in sorted(lengths)[:SHOWN]
    ]


def all_steps(run: Analysis) -> tuple[tuple[int, int], ...]:
    """The range of steps in which a finding on the data shows: all that were counted."""
    return ((run.steps.first_sync, run.steps.last_sync),) if run.steps.counted else ()
