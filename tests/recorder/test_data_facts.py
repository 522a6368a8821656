"""What is recorded of a loader and its passes, also of loaders that lie, never end or raise."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
)

from ddpdoctor.recorder.describing import describe, holdings
from ddpdoctor.recorder.drawn import DrawnSample
from ddpdoctor.recorder.streamed import BATCHES_LOOKED_AT, KEPT, Stream
from tests.recorder.test_loader import Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


class Stuff(Dataset):
    """A dataset of a given length, whose samples do not matter."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3)


class Naturals(IterableDataset):
    def __init__(self, end: int | None, claimed: int | None = None) -> None:
        self.end, self.claimed = end, claimed

    def __len__(self) -> int:
        if self.claimed is None:
            raise TypeError("a stream has no length")
        return self.claimed

    def __iter__(self) -> Iterator[torch.Tensor]:
        numbers = itertools.count() if self.end is None else range(self.end)
        return (torch.full((4,), float(number)) for number in numbers)


def distributed(length: int, **options: object) -> DataLoader:
    data = Stuff(length)
    sampler = DistributedSampler(data, num_replicas=4, rank=2, seed=7, **options)  # type: ignore[arg-type]
    return DataLoader(data, batch_size=8, sampler=sampler)


def test_the_settings_of_a_distributed_sampler() -> None:
    info = describe(distributed(103, drop_last=True), None, joined=False)

    assert (info.sampler, info.sampler_replicas, info.sampler_rank) == ("DistributedSampler", 4, 2)
    assert (info.shuffle, info.seed, info.sampler_drop_last) == (True, 7, True)
    assert (info.dataset_length, info.length) == (103, 4)


class Mine:
    """A batch sampler of one's own, with the names that torch uses."""

    def __init__(self, **settings: object) -> None:
        self.__dict__.update(settings)

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3]])

    def __len__(self) -> int:
        return 2


def test_a_sampler_of_ones_own_with_torch_s_names() -> None:
    sampler = Mine(num_replicas=np.int64(2), rank=1, seed="yes", shuffle=1, epoch=3)
    info = describe(DataLoader(Stuff(8), batch_sampler=sampler), None, joined=False)

    assert (info.sampler_replicas, info.sampler_rank, info.length) == (2, 1, 2)
    assert (info.seed, info.shuffle) == (None, None)


@pytest.mark.parametrize("settings", [{"num_replicas": True, "rank": 0}, {"rank": 10**30}, {}])
def test_settings_that_make_no_sense_are_not_known(settings: dict) -> None:
    info = describe(DataLoader(Stuff(8), batch_sampler=Mine(**settings)), None, joined=False)

    assert (info.sampler_replicas, info.sampler_rank) == (None, None)


@pytest.mark.parametrize(
    ("claimed", "batches"), [(None, None), (100, 13), (sys.maxsize, None), (0, 0)]
)
def test_the_length_of_a_stream_is_asked_without_torch_noticing(
    claimed: int | None, batches: int | None
) -> None:
    """`len(loader)` of a stream makes torch warn when more comes; our asking must not."""
    loader = DataLoader(Naturals(200, claimed), batch_size=8)

    info = describe(loader, None, joined=False)

    assert (info.iterable, info.length) == (True, batches)
    assert sum(1 for _ in loader) == 25  # a warning would be an error here


def test_a_pass_is_counted_batch_by_batch(job: Job) -> None:
    data = TensorDataset(torch.arange(30.0)[:, None].expand(-1, 5), torch.arange(30))
    for _ in range(2):
        for batch in DataLoader(data, batch_size=8):
            job.train(batch)

    first, second = job.trace().epochs

    assert (first.batches, first.samples, first.ended) == (4, 30, True)
    assert (first.first_rows, first.last_rows, first.least_rows, first.most_rows) == (8, 6, 6, 8)
    assert (first.shape, first.elements) == ((8, 5), (40, 40, 40, 30))
    assert (first.first_sync, first.last_sync) == (0, 4)
    assert (second.epoch, second.first_sync, second.last_sync) == (1, 4, 8)
    assert first.order == second.order
    assert first.first_indices == tuple(range(16))


def test_an_epoch_that_was_told_and_the_order_that_follows_from_it(job: Job) -> None:
    loader = distributed(128)
    for epoch in range(3):
        loader.sampler.set_epoch(min(epoch, 1))
        for batch in loader:
            job.train(batch)

    passes = job.trace().epochs

    assert [each.sampler_epoch for each in passes] == [0, 1, 1]
    assert passes[0].order[0] != passes[1].order[0]
    assert passes[1].order == passes[2].order
    assert len(passes[0].order) == 3  # after batches 1, 2 and 4


def test_a_pass_that_was_left_early_ends_where_the_next_begins(job: Job) -> None:
    loader = DataLoader(Stuff(80), batch_size=8)
    for stop in (3, None):
        for batch in itertools.islice(loader, stop):
            job.train(batch)

    first, second = job.trace().epochs

    assert (first.ended, first.last_sync, second.first_sync) == (False, 3, 3)


def test_a_pass_is_told_as_far_as_recording_was_on(job: Job) -> None:
    for count, batch in enumerate(DataLoader(Stuff(160), batch_size=8)):
        job.train(batch)
        job.phases.switch.on = count != 8

    (seen,) = job.trace().epochs

    assert (seen.batches, seen.ended) == (8, False)


def test_a_rank_that_is_killed_leaves_how_far_it_came(job: Job) -> None:
    for batch in itertools.islice(DataLoader(Stuff(8000), batch_size=8), 70):
        job.train(batch)

    text = job.path.with_suffix(".facts.jsonl").read_text()

    assert '"batches": 64' in text
    assert text.count('"fact": "epoch"') == 5  # at 4, 8, 16, 32 and 64


@pytest.mark.parametrize("enable", [True, False])
def test_within_join_ranks_may_have_fewer_batches(job: Job, enable: bool) -> None:
    """Left by an exception, since leaving it otherwise runs collectives."""
    join = Join.__new__(Join)
    join._enable = enable
    with suppress(KeyError), join:
        for batch in DataLoader(Stuff(32), batch_size=8):
            job.train(batch)
        raise KeyError
    for batch in DataLoader(Stuff(40), batch_size=8):
        job.train(batch)

    assert [info.joined for info in job.trace().loaders.values()] == [enable, False]


def test_a_stream_without_an_end_costs_a_bounded_amount(job: Job) -> None:
    for batch in itertools.islice(DataLoader(Naturals(None), batch_size=128), 300):
        job.train(batch)

    assert '"streamed"' in job.path.with_suffix(".facts.jsonl").read_text()  # already
    trace = job.trace()
    (stream,) = trace.streamed

    assert trace.epochs[0].batches == 300
    assert not trace.epochs[0].ended
    assert stream.seen == BATCHES_LOOKED_AT * 64  # so many samples of each batch
    assert len(stream.samples) == KEPT
    assert len(stream.batches) == BATCHES_LOOKED_AT


def test_a_stream_is_delivered_as_without_us(job: Job) -> None:
    plain = list(DataLoader(Naturals(50), batch_size=8))

    seen = []
    for batch in DataLoader(Naturals(50), batch_size=8):
        seen.append(batch)
        job.train(batch)

    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


@pytest.mark.parametrize(
    "batch",
    [
        ["a line", "another"],
        {"ids": torch.arange(6).reshape(2, 3), "mask": torch.ones(2, 3)},
        [torch.ones(2, 3, dtype=torch.bfloat16), torch.tensor([True, False])],
        torch.arange(2),
    ],
)
def test_samples_of_a_stream_are_told_by_their_content(batch: object) -> None:
    stream = Stream()
    stream.delivers(batch)
    stream.delivers(batch)

    summary = stream.summary(0, 0)

    assert summary is not None
    assert (summary.seen, summary.distinct) == (4, 2)
    assert len(set(summary.batches)) == 1


@pytest.mark.parametrize("batch", [None, 7, {}, [], torch.tensor(1.0), {"a": object()}, [None]])
def test_what_cannot_be_told_apart_is_not_said_to_be_seen(batch: object) -> None:
    stream = Stream()
    stream.delivers(batch)

    assert stream.summary(0, 0) is None


class Keyed(Dataset):
    """Of samples that are asked for by anything but an integer."""

    def __getitem__(self, key: object) -> torch.Tensor:
        return torch.zeros(2)


@pytest.mark.parametrize("key", [{"a": 1}, (1, 2), "bär", None, 2.5, 2**70])
def test_keys_that_are_no_integers(job: Job, key: object) -> None:
    for batch in DataLoader(Keyed(), batch_size=4, sampler=[key] * 32):
        job.train(batch)

    trace = job.trace()

    assert trace.drawn == ()
    (seen,) = trace.epochs
    assert (seen.batches, seen.samples, seen.order) == (8, 32, ())


def test_random_states_are_looked_at_and_not_touched(job: Job) -> None:
    torch.manual_seed(0)
    random.seed(0)
    plain = [(torch.rand(1).item(), random.random()) for _ in range(40)]
    torch.manual_seed(0)
    random.seed(0)

    seen = []
    for batch in DataLoader(torch.arange(320), batch_size=8, generator=torch.Generator()):
        seen.append((torch.rand(1).item(), random.random()))
        job.train(batch)

    assert seen == plain
    looks = job.trace().random_states
    assert [look.batch for look in looks] == [2, 4, 8, 16, 32]
    for look in looks:
        assert look.asked == look.delivered
        assert [a != b for a, b in zip(look.delivered, look.trained, strict=True)] == [
            True,
            False,
            True,
        ]


class Noisy(Stuff):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(3)


def test_what_loading_draws_is_told_from_what_training_draws(job: Job) -> None:
    for batch in DataLoader(Noisy(80), batch_size=8):
        job.train(batch)

    looks = job.trace().random_states

    assert len(looks) == 3
    assert all(look.asked[0] != look.delivered[0] == look.trained[0] for look in looks)


class Files(Dataset):
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.root = "/data"
        self.cache: list[object] = [None] * len(paths)

    def __len__(self) -> int:
        return len(self.paths)


def test_lists_of_a_dataset_are_hashed_in_their_order() -> None:
    paths = [f"/data/a/{number}.jpg" for number in range(100)]
    elsewhere = [path.replace("/data", "/scratch") for path in paths]

    same, reverse = holdings(Files(paths)), holdings(Files(paths[::-1]))

    assert set(same) == {"paths"}  # what is cached may be none yet, and is not compared
    assert same["paths"].in_order != reverse["paths"].in_order
    assert same["paths"].in_any == reverse["paths"].in_any
    assert same == holdings(Files(elsewhere))


def test_of_a_long_list_not_every_item_is_looked_at() -> None:
    held = holdings(Subset(Stuff(10**6), range(0, 10**6)))  # type: ignore[arg-type]
    listed = holdings(Subset(Stuff(10**6), list(range(10**6))))

    assert held == {}  # no list
    assert listed["indices"].in_any is None


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda order: Subset(Stuff(50), order), {"indices"}),
        (lambda order: TensorDataset(torch.tensor(order)), {"tensors"}),
        (lambda order: Subset(Files([str(i) for i in order]), list(range(50))),
         {"indices", "dataset.paths"}),
    ],
)  # fmt: skip
def test_what_torch_s_own_datasets_hold(make, names: set[str]) -> None:
    one = holdings(make(list(range(50))))

    assert set(one) == names
    assert one == holdings(make(list(range(50))))
    assert one != holdings(make(list(range(49, -1, -1))))


class Hostile(Dataset):
    def __init__(self) -> None:
        self.items = [object()] * 4
        self.more = [nn.Linear(1, 1)] * 4

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize("dataset", [Hostile(), Naturals(4), None, object(), [1, 2], 7])
def test_what_has_no_plain_lists_holds_nothing_that_can_be_compared(dataset: object) -> None:
    assert holdings(dataset) == {}


def test_two_ranks_of_ten_million_indices_in_bounded_memory() -> None:
    """Every second index each; a third rank draws the second half of the first rank's."""
    total, cut = 10_000_000, 65_536
    samples = []
    for first, last in ((0, total), (1, total), (total // 2, total)):
        sample = DrawnSample()
        indices = np.arange(first, last, 2)
        for begin in range(0, len(indices), cut):
            sample.add(indices[begin : begin + cut], None, in_order=False)
        samples.append(sample.summary(0, 0))

    even, odd, half = samples

    assert all(len(sample.indices) <= 2048 for sample in samples)
    assert even.drawn == total // 2
    assert not set(even.indices) & set(odd.indices)
    limit = min(even.threshold, half.threshold)
    common = set(even.indices) & set(half.indices)
    assert len(common) / limit == pytest.approx(total / 4, rel=0.15)  # of 1,000 that are kept
