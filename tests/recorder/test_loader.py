"""Which loaders are described, which epochs, and which input is called evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

from ddpdoctor.events import Flag, Kind, Phase, RunInfo
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.loader import LOADERS_KEPT, LoaderHooks
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.writer import RankFile
from ddpdoctor.tracefile import RankTrace, read_rank
from tests.builders import rank_info


class Job:
    """A recorded loop of one rank, in which forward and backward are played."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rank00000.ddt"
        self.errors: list[Exception] = []
        self._file = RankFile(self.path, RunInfo("r", 0, 1, "gloo"), rank_info(0, 1), 2**20)
        self._facts = FactsFile(self.path.with_suffix(".facts.jsonl"))
        self.phases = Phases(self._file)
        self.hooks = LoaderHooks(
            self.phases, self._facts, CallSites(self._facts.site), Guard(self.errors.append)
        )

    def train(self, *_batches: object) -> None:
        self.phases.end(self.phases.begin_forward(0, no_grad=False))
        self.phases.end(self.phases.begin(Phase.BACKWARD, 0))
        self.phases.synced_backward()

    def evaluate(self, *_batches: object) -> None:
        self.phases.end(self.phases.begin_forward(0, no_grad=True))

    def close(self) -> None:
        if not self._file.closed:
            self.hooks.remove()
            self.phases.finish()
            self._file.close()
            self._facts.close()

    def trace(self) -> RankTrace:
        self.close()
        assert self.errors == []
        return read_rank(self.path)[1]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def loader(length: int = 32, **options: object) -> DataLoader:
    """Its length tells which it is."""
    return DataLoader(torch.arange(length), batch_size=8, **options)  # type: ignore[arg-type]


def lengths(trace: RankTrace) -> list[int | None]:
    return [info.dataset_length for info in trace.loaders.values()]


def drawn(trace: RankTrace) -> dict[tuple[int, int], int]:
    return {(epoch.loader, epoch.epoch): epoch.drawn for epoch in trace.drawn}


def inputs(trace: RankTrace) -> list[bool]:
    """For each input span, whether it was for the training."""
    spans = trace.detail[trace.detail["kind"] == Kind.SPAN]
    own = spans[spans["code"] == Phase.INPUT]
    return [not flags & Flag.NO_GRAD for flags in own["flags"].tolist()]


def evaluate_with_ddp(job: Job, loader: DataLoader) -> None:
    for batch in loader:
        with torch.no_grad():
            job.evaluate(batch)


def evaluate_the_module(job: Job, loader: DataLoader) -> None:
    for batch in loader:
        with torch.no_grad():
            torch.relu(batch)


def evaluate_with_iter_before(job: Job, loader: DataLoader) -> None:
    batches = iter(loader)
    with torch.no_grad():
        for batch in batches:
            job.evaluate(batch)


def evaluate_a_few(job: Job, loader: DataLoader) -> None:
    for count, batch in enumerate(loader):
        if count == 2:
            break
        torch.relu(batch)


def evaluate_one(job: Job, loader: DataLoader) -> None:
    torch.relu(next(iter(loader)))


EVALUATIONS = [
    evaluate_with_ddp,
    evaluate_the_module,
    evaluate_with_iter_before,
    evaluate_a_few,
    evaluate_one,
]
Evaluation = Callable[[Job, DataLoader], None]


@pytest.mark.parametrize("evaluation", EVALUATIONS)
@pytest.mark.parametrize("first", [True, False])
def test_a_validation_loader_feeds_no_training(
    job: Job, evaluation: Evaluation, first: bool
) -> None:
    training, validation = loader(32), loader(24)
    for _ in range(2):
        if first:
            evaluation(job, validation)
        for batch in training:
            job.train(batch)
        if not first:
            evaluation(job, validation)

    trace = job.trace()

    assert lengths(trace) == [32]
    assert drawn(trace) == {(0, 0): 32, (0, 1): 32}
    assert sum(inputs(trace)) == 2 * (1 + 4 + 1)  # `iter`, the batches, the end


def test_an_evaluation_amid_a_step_leaves_the_training_batch_alone(job: Job) -> None:
    validation = loader(16)
    for batch in loader(32):
        evaluate_with_ddp(job, validation)
        with torch.no_grad():
            for seen in validation:
                job.evaluate(seen)
        job.train(batch)

    trace = job.trace()

    assert lengths(trace) == [32]
    assert sum(inputs(trace)) == 6


def test_a_validation_iterator_that_stays(job: Job) -> None:
    """One batch of it every second step."""
    validation = iter(loader(800))
    for count, batch in enumerate(loader(32)):
        job.train(batch)
        if count % 2:
            seen = next(validation)
            with torch.no_grad():
                job.evaluate(seen)

    trace = job.trace()

    assert lengths(trace) == [32]
    assert sum(inputs(trace)) == 6


def test_several_loaders_a_step_all_feed_it(job: Job) -> None:
    for batches in zip(loader(32), loader(40), loader(48), strict=False):
        job.train(batches)

    trace = job.trace()

    assert lengths(trace) == [32, 40, 48]
    assert all(inputs(trace)[:-2])


def test_pseudo_labels_are_no_evaluation(job: Job) -> None:
    for batch, unlabelled in zip(loader(32), loader(40), strict=False):
        job.evaluate(unlabelled)
        job.train(batch, unlabelled)

    assert lengths(job.trace()) == [32, 40]


@pytest.mark.parametrize("size", [2, 4, 3])
def test_batches_drawn_in_groups(job: Job, size: int) -> None:
    """For gradient accumulation, with the end of the epoch seen before its last batches."""
    batches = iter(loader(32))
    while group := list(itertools.islice(batches, size)):
        for batch in group:
            job.train(batch)

    trace = job.trace()

    assert drawn(trace) == {(0, 0): 32}
    assert all(inputs(trace))


def test_batches_drawn_one_ahead(job: Job) -> None:
    def ahead(batches: DataLoader) -> Iterator[torch.Tensor]:
        iterator = iter(batches)
        current = next(iterator)
        for following in iterator:
            yield current
            current = following
        yield current

    for _ in range(2):
        for batch in ahead(loader(32)):
            job.train(batch)
            evaluate_with_ddp(job, loader(24))
    for batch in ahead(loader(8)):  # an epoch of a single batch
        job.train(batch)

    trace = job.trace()

    assert lengths(trace) == [32, 8]
    assert drawn(trace) == {(0, 0): 32, (0, 1): 32, (1, 0): 8}


def test_forwards_that_share_a_backward(job: Job) -> None:
    for count, _ in enumerate(loader(32)):
        job.phases.end(job.phases.begin_forward(0, no_grad=False))
        if count % 2:
            job.phases.end(job.phases.begin(Phase.BACKWARD, 0))

    assert drawn(job.trace()) == {(0, 0): 32}


def test_a_loader_made_anew_is_the_next_epoch_of_the_same(job: Job) -> None:
    for _ in range(40):
        for batch in loader(32):
            job.train(batch)

    trace = job.trace()

    assert lengths(trace) == [32]
    assert [epoch for _, epoch in drawn(trace)] == [0, 1, 2, 3, 4, 8, 16, 32]


def test_what_is_kept_of_many_loaders_is_bounded(job: Job) -> None:
    for length in range(8, 8 + 2 * LOADERS_KEPT):
        for batch in loader(length):
            job.train(batch)

    trace = job.trace()

    assert len(trace.loaders) == LOADERS_KEPT
    assert len(trace.drawn) == LOADERS_KEPT
    assert len([note for note in trace.notes if "different loaders" in note]) == 1


class Endless(Sampler):
    """One stream of reshuffled passes, of which rank r of n takes every n-th."""

    def __init__(self, length: int, rank: int, ranks: int) -> None:
        self._length, self._rank, self._ranks = length, rank, ranks

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(0)
        stream = (
            index
            for _ in itertools.count()
            for index in torch.randperm(self._length, generator=generator).tolist()
        )
        return itertools.islice(stream, self._rank, None, self._ranks)


def test_of_an_endless_sampler_the_first_pass_is_kept(job: Job) -> None:
    job.hooks._world_size = 2
    sampler = Endless(203, 1, 2)
    for batch in itertools.islice(loader(203, sampler=sampler), 100):
        job.train(batch)

    (epoch,) = job.trace().drawn

    assert epoch.drawn == len(epoch.indices) == 96  # of 101, whole batches
    assert epoch.repeats == 0


class Lengthless(Dataset):
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        raise self.error

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("error", [KeyError("x"), AssertionError(), OSError(), ZeroDivisionError()])
def test_a_length_that_cannot_be_told_is_unknown(job: Job, error: Exception) -> None:
    batches = DataLoader(Lengthless(error), batch_size=8, sampler=range(32))
    for batch in batches:
        job.train(batch)

    trace = job.trace()

    assert lengths(trace) == [None]
    assert drawn(trace) == {(0, 0): 32}


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(32))


class Named(Dataset):
    def __getitem__(self, name: str) -> int:
        return int(name)


@pytest.mark.parametrize(
    "batches",
    [
        DataLoader(Stream(), batch_size=8),
        DataLoader(Named(), batch_size=8, sampler=[str(index) for index in range(32)]),
    ],
)
def test_without_integer_indices_nothing_is_said_to_be_drawn(job: Job, batches: DataLoader) -> None:
    for batch in batches:
        job.train(batch)

    trace = job.trace()

    assert len(trace.loaders) == 1
    assert drawn(trace) == {}


@pytest.mark.parametrize(
    "options",
    [
        {"batch_sampler": [list(range(8 * k, 8 * k + 8)) for k in range(4)]},
        {"batch_size": 8, "sampler": torch.randperm(32)},
        {"batch_size": 8, "num_workers": 2, "persistent_workers": True},
        {"batch_size": 8, "num_workers": 2, "in_order": False},
        {"batch_size": None},
    ],
)
def test_every_kind_of_loader_over_several_epochs(job: Job, options: dict) -> None:
    batches = DataLoader(torch.arange(32), **options)
    for _ in range(3):
        for batch in batches:
            job.train(batch)

    trace = job.trace()

    assert drawn(trace) == {(0, 0): 32, (0, 1): 32, (0, 2): 32}
    assert all(sorted(epoch.indices) == list(range(32)) for epoch in trace.drawn)


def test_a_pass_that_was_left_early_does_not_shift_the_next(job: Job) -> None:
    batches = DataLoader(
        torch.arange(32) + 100, batch_size=8, num_workers=1, persistent_workers=True, shuffle=True
    )
    for batch in itertools.islice(batches, 2):
        job.train(batch)
    for batch in batches:
        job.train(batch)

    first, second = job.trace().drawn

    assert (first.drawn, second.drawn) == (16, 32)
    contents = dict(zip(second.indices, second.contents, strict=True))
    assert all(contents[index] == seen for index, seen in zip(first.indices, first.contents,
                                                              strict=True))  # fmt: skip


def split(length: int, rank: int = 0) -> DataLoader:
    """Its part of what three ranks evaluate."""
    sampler = DistributedSampler(Numbers(length), 3, rank, shuffle=False)
    return DataLoader(Numbers(length), batch_size=2, sampler=sampler)


class Numbers(Dataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def test_a_loader_of_evaluation_is_told_once_with_what_it_drew(job: Job) -> None:
    for _ in range(3):
        with torch.no_grad():
            for batch in split(10):
                torch.relu(batch)

    (told,) = job.trace().evaluated

    assert (told.samples, told.loader.dataset_length, told.loader.sampler_replicas) == (4, 10, 3)
    assert told.loader.site is not None


def test_what_is_trained_on_left_early_or_not_split_is_no_evaluation(job: Job) -> None:
    for batch in split(20):
        job.train(batch)
    with torch.no_grad():
        for batch in loader(40):
            torch.relu(batch)
        for batch in split(30):
            torch.relu(batch)
            break

    assert job.trace().evaluated == ()


class Seen(dict):  # type: ignore[type-arg]
    """A batch that counts how often somebody asks what it holds."""

    asked = 0

    def values(self) -> Any:
        type(self).asked += 1
        return super().values()


def test_batches_of_an_epoch_that_is_not_kept_are_left_alone(job: Job) -> None:
    feed = DataLoader(torch.arange(80), 8, collate_fn=lambda rows: Seen(x=torch.stack(rows)))
    asked = []
    for _ in range(9):
        before = Seen.asked
        for batch in feed:
            job.train(batch)
        asked.append(Seen.asked - before)
    most = max(asked)
    assert [epoch for epoch, count in enumerate(asked) if count == most] == [0, 1, 2, 3, 4, 8]
    assert max(asked[5:8]) <= most // 10  # the first batch: whether it trains was not known then
    assert [epoch.epoch for epoch in job.trace().drawn] == [0, 1, 2, 3, 4, 8]
