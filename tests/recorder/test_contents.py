"""What is looked at in the samples of a batch."""

from __future__ import annotations

import pytest
import torch

from ddpdoctor.events import INDEX_ITSELF
from ddpdoctor.recorder.contents import Contents

IMAGES = torch.rand(6, 3, 40, 40)


@pytest.mark.parametrize(
    "leaf",
    [
        IMAGES,
        IMAGES.to(memory_format=torch.channels_last),
        IMAGES.to(torch.bfloat16),
        IMAGES.to(torch.complex64),
        IMAGES > 0.5,
        torch.rand(6, 3, requires_grad=True),
        torch.rand(3, 6).T,
    ],
    ids=["float", "channels last", "bfloat16", "complex", "bool", "gradient", "transposed"],
)
def test_a_sample_has_one_fingerprint_in_whichever_row(leaf: torch.Tensor) -> None:
    turned = leaf.flip(0)
    here = Contents(leaf, 6).look([1, 4], [10, 40])
    there = Contents([turned, torch.arange(6)], 6).look([4, 1], [10, 40])

    assert here[0].fingerprints[0] == there[0].fingerprints[0]
    assert here[1].fingerprints[0] == there[1].fingerprints[0]
    assert here[0].fingerprints[0] != here[1].fingerprints[0]
    assert [look.level for look in here] == [look.level for look in there]


def test_the_level_is_the_mean_and_a_dataset_of_indices_is_told() -> None:
    values = torch.tensor([3, 8])
    ramps = torch.arange(10.0).repeat(2, 1) * values[:, None]

    first, second = Contents((ramps, values), 2).look([0, 1], [3, 7])

    assert (first.level, second.level) == (13.5, 36.0)
    assert first.fingerprints[1] == INDEX_ITSELF
    assert second.fingerprints[1] != INDEX_ITSELF


def test_labels_complex_numbers_and_what_is_not_finite_have_no_level() -> None:
    labels, spectra = torch.rand(2, 3), torch.zeros(2, 8, dtype=torch.complex64)
    broken = torch.full((2, 8), torch.inf)
    for batch in (labels, spectra, broken, torch.zeros(2, 0)):
        assert [look.level for look in Contents(batch, 2).look([0, 1], [5, 6])] == [None, None]


def test_samples_that_were_not_stacked_are_taken_one_by_one() -> None:
    samples = [(torch.rand(size, size), torch.tensor(size)) for size in (4, 5, 6)]

    listed = Contents(samples, 3).look([2, 0], [6, 4])
    zipped = Contents(tuple(zip(*samples, strict=True)), 3).look([2, 0], [6, 4])

    assert listed == zipped
    assert [look.fingerprints[1] for look in listed] == [INDEX_ITSELF, INDEX_ITSELF]
