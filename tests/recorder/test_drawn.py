"""The sample of drawn indices is the same on every rank, bounded, and knows contents."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.events import INDEX_ITSELF
from ddpdoctor.recorder.drawn import KEPT, LOOKED_INTO, DrawnSample, as_indices
from ddpdoctor.sketch import index_hash_shares, index_hashes, lowest


def draw(indices: np.ndarray, batch_size: int = 64) -> DrawnSample:
    sample = DrawnSample()
    for begin in range(0, len(indices), batch_size):
        sample.add(indices[begin : begin + batch_size], None, in_order=True)
    return sample


def test_small_epochs_are_kept_whole() -> None:
    summary = draw(np.arange(1000)).summary(0, 0)

    assert summary.drawn == 1000
    assert summary.threshold == 1.0
    assert sorted(summary.indices) == list(range(1000))


@pytest.mark.parametrize("size", [10_000, 300_000])
def test_large_epochs_keep_a_bounded_sample_that_scales(size: int) -> None:
    summary = draw(np.arange(size), 4096).summary(0, 0)

    assert len(summary.indices) <= KEPT
    assert len(summary.indices) / summary.threshold == pytest.approx(size, rel=0.1)


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_two_ranks_keep_the_same_of_what_both_drew(seed: int) -> None:
    """Whatever the order and whatever else each drew, below the smaller threshold."""
    random = np.random.default_rng(seed)
    common = random.integers(0, 10**9, 3000)
    ranks = [draw(random.permutation(np.concatenate([common, random.integers(0, 10**9, 500 * k)])))
             for k in (1, 9)]  # fmt: skip

    mine, theirs = (rank.summary(0, 0) for rank in ranks)
    threshold = min(mine.threshold, theirs.threshold)

    expected = {i for i in set(common.tolist()) if index_hash_shares([i])[0] < threshold}
    assert expected <= set(mine.indices) & set(theirs.indices)


def test_hashes_are_spread_evenly() -> None:
    shares = np.array(index_hash_shares(range(10_000)))

    assert abs(shares.mean() - 0.5) < 0.01
    assert abs((shares < 0.1).mean() - 0.1) < 0.01


def test_contents_are_told_by_row_and_by_tensor() -> None:
    images = torch.arange(12.0).reshape(4, 3)
    labels = torch.tensor([7, 7, 8, 9])
    sample = DrawnSample()

    sample.add(np.arange(4), [images, {"label": labels}], in_order=True)

    contents = dict(zip(sample.summary(0, 0).indices, sample.summary(0, 0).contents, strict=True))
    assert contents[0][0] != contents[1][0]
    assert contents[0][1] == contents[1][1]
    assert contents[1][1] != contents[2][1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.uint8])
def test_tensors_of_every_type_have_a_fingerprint(dtype: torch.dtype) -> None:
    sample = DrawnSample()

    sample.add(np.arange(2), torch.ones(2, 3).to(dtype), in_order=True)

    assert all(contents is not None for contents in sample.summary(0, 0).contents)


class Untouchable(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise KeyError("anything")


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2, 3, dtype=torch.complex64).conj(),
        torch.ones(2, 3, dtype=torch.complex64).conj().imag,
        torch.nested.nested_tensor([torch.ones(3), torch.ones(4)], layout=torch.jagged),
        torch.ones(2, 3).to_sparse(),
        torch.ones(2, 3, device="meta"),
        torch.ones(2, 3).as_subclass(Untouchable),
    ],
)
def test_tensors_of_another_build_have_no_fingerprint(batch: torch.Tensor) -> None:
    sample = DrawnSample()

    sample.add(np.arange(2), batch, in_order=True)

    assert sample.summary(0, 0).contents == (None, None)


def images(*sizes: int) -> list[torch.Tensor]:
    return [torch.full((3, size), float(size)) for size in sizes]


def contents_of(batch: object, rows: int) -> tuple:
    sample = DrawnSample()
    sample.add(np.arange(rows), batch, in_order=True)
    return sample.summary(0, 0).contents


def test_batches_that_were_not_stacked_are_told_by_sample() -> None:
    """As detection has them."""
    boxes = [{"boxes": torch.ones(n, 4)} for n in (5, 6, 7)]
    samples = list(zip(images(1, 2, 3), boxes, strict=True))

    as_list, as_columns = contents_of(samples, 3), contents_of(tuple(zip(*samples, strict=True)), 3)

    assert as_list == as_columns
    assert len(set(as_list)) == 3
    assert {len(contents) for contents in as_list} == {2}


def test_two_samples_of_two_parts_may_be_either_way_round() -> None:
    batch = [(image, torch.ones(5)) for image in images(7, 8)]

    assert contents_of(batch, 2) == (None, None)


def test_a_sample_that_holds_its_index_is_known_by_that() -> None:
    contents = contents_of([torch.rand(3, 4), torch.arange(3)], 3)

    assert [of[1] for of in contents] == [INDEX_ITSELF] * 3


def test_the_level_is_that_of_the_image_however_it_is_flipped() -> None:
    images = torch.rand(4, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    plain, flipped = DrawnSample(), DrawnSample()

    plain.add(np.arange(4), [torch.arange(4), images], in_order=True)
    flipped.add(np.arange(4), [torch.arange(4), images.flip(3)], in_order=True)

    assert plain.summary(0, 0).levels == pytest.approx(images.mean((1, 2, 3)).tolist(), abs=0.05)
    assert flipped.summary(0, 0).levels == pytest.approx(plain.summary(0, 0).levels, abs=0.05)


def test_labels_and_what_is_no_number_have_no_level() -> None:
    sample = DrawnSample()

    sample.add(np.arange(2), [torch.arange(2), torch.full((2, 20), torch.nan)], in_order=True)

    assert sample.summary(0, 0).levels == (None, None)


@pytest.mark.parametrize("batch_size", [16, 4096])
def test_ranks_look_into_the_same_samples(batch_size: int) -> None:
    looked = []
    for seed in range(2):
        sample = DrawnSample()
        order = np.random.default_rng(seed).permutation(20_000)
        for begin in range(0, len(order), batch_size):
            part = order[begin : begin + batch_size]
            sample.add(part, torch.from_numpy(part), in_order=True)
        made = sample.summary(0, 0)
        known = zip(made.indices, made.contents, strict=True)
        looked.append({index for index, contents in known if contents is not None})

    assert all(LOOKED_INTO / 4 < len(own) <= KEPT for own in looked)
    assert len(looked[0] & looked[1]) > LOOKED_INTO / 4


def test_repeats_are_counted() -> None:
    sample = DrawnSample()
    for _ in range(3):
        sample.add(np.array([1, 1, 2]), None, in_order=True)

    assert sample.summary(0, 0).repeats == 7


@pytest.mark.parametrize("batch", ["text", [["a", "b"]], torch.ones(3, 2), None, torch.tensor(1)])
def test_batches_that_cannot_be_taken_apart_have_none(batch: object) -> None:
    sample = DrawnSample()

    sample.add(np.arange(2), batch, in_order=True)

    assert sample.summary(0, 0).contents == (None, None)


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        (torch.tensor([3, 1]), [3, 1]),
        ([torch.tensor(3), torch.tensor(1)], [3, 1]),
        (np.array([3, 1]), [3, 1]),
        (torch.tensor([0.5]), None),
        ([3, 1], [3, 1]),
        (5, [5]),
        ([np.int32(4)], [4]),
        ([{"image": 1}], None),
        (["a"], None),
        ([None, None], None),
        ([True], None),
        ([2**70], None),
    ],
)
def test_what_is_an_index(drawn: object, expected: list[int] | None) -> None:
    indices = as_indices(drawn)

    assert (indices.tolist() if indices is not None else None) == expected


@given(st.lists(st.integers(0, 2**62), max_size=80), st.integers(1, 2**64))
def test_the_lowest_hashes_are_found_among_few_and_many(drawn: list[int], limit: int) -> None:
    indices = np.array(drawn, np.int64)
    hashes = index_hashes(indices).tolist()

    found = lowest(indices, limit)

    assert found == [(at, drawn[at], hashed) for at, hashed in enumerate(hashes) if hashed < limit]
