"""Digests: equal for equal elements, different for others, and absent where nothing can be read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddpdoctor.recorder import checksums
from ddpdoctor.recorder.checksums import ELEMENTS, any_is_set, digests, is_finite

TYPES = (
    torch.bool, torch.int8, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
)  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_one_element_changes_the_digest_of_its_tensor_alone(dtype: torch.dtype) -> None:
    tensors = [torch.ones(4, dtype=torch.float32).to(dtype) for _ in range(3)]
    before = digests(enumerate(tensors), 0)
    tensors[1].view(torch.uint8)[0] ^= 1

    after = digests(enumerate(tensors), 0)

    differ = [place for place in range(3) if before.digests[place] != after.digests[place]]
    assert differ == [1]
    assert before.tensors == after.tensors == (0, 1, 2)


def test_types_are_mixed_and_places_kept_in_order() -> None:
    tensors = {7: torch.ones(3), 2: torch.ones(3, dtype=torch.int8), 5: 2 * torch.ones(1)}

    found = digests(tensors.items(), 3)

    assert found.tensors == (2, 5, 7)
    assert found.sizes == (1.0, 2.0, 1.0)


def test_another_turn_looks_at_other_elements() -> None:
    large = torch.arange(100 * ELEMENTS)

    looks = {digests([(0, large)], turn).digests for turn in range(100)}

    assert len(looks) == 100
    large[41] += 1
    seen = [turn for turn in range(100) if (digests([(0, large)], turn).digests not in looks)]
    assert seen == [41]


def test_dense_tensors_are_read_in_whatever_order_of_dimensions() -> None:
    image = torch.randn(2, 3, 8, 8)

    for tensor in (image.to(memory_format=torch.channels_last), image[0].permute(2, 0, 1)):
        assert digests([(0, tensor)], 0).tensors == (0,)


def test_what_cannot_be_read_is_left_out() -> None:
    unread = [
        None,
        torch.empty(0),
        torch.empty(3, device="meta"),
        torch.sparse_coo_tensor([[0]], [1.0], (3,), check_invariants=True),
        torch.ones(1).expand(4),
        torch.ones(8)[::2],
        nn.parameter.UninitializedParameter(),
    ]

    found = digests([*enumerate(unread), (99, torch.ones(1))], 0)

    assert found.tensors == (99,)


def test_no_elements_at_all() -> None:
    assert digests([], 0).tensors == ()


def test_what_is_not_finite_has_a_digest_and_no_size() -> None:
    found = digests(enumerate([torch.tensor([1.0, float("nan")]), torch.tensor(float("inf"))]), 0)

    assert found.sizes == (None, None)
    assert None not in found.digests


def test_reading_leaves_no_trace_on_a_parameter() -> None:
    parameter = nn.Parameter(torch.randn(4, 4))
    version = parameter._version

    digests([(0, parameter)], 1)
    is_finite(parameter)

    assert parameter._version == version
    assert parameter.grad_fn is None


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.ones(3), True),
        (torch.tensor([1.0, float("nan")]), False),
        (torch.full((4,), float("inf"), dtype=torch.bfloat16), False),
        (torch.full((1000,), 60000.0, dtype=torch.float16), True),  # its sum is beyond float16
        (torch.full((4,), 3e38), True),  # and this one's beyond float32
        (torch.full((3, 40_000), float("nan")), False),
        (torch.ones(3, dtype=torch.int8), None),
        (torch.empty(3, device="meta"), None),
        (torch.tensor([complex("nan")]), False),
        (torch.empty(0), True),
    ],
)
def test_finite_or_not(tensor: torch.Tensor, expected: bool | None) -> None:
    assert is_finite(tensor) is expected


def test_all_finite_looks_at_every_element() -> None:
    large = torch.zeros(100_000)
    large[77_777] = float("inf")

    assert is_finite(large) is True  # a sample of it
    assert not checksums.all_finite(large)


def test_set_or_zero() -> None:
    assert not any_is_set(torch.zeros(1000))
    assert not any_is_set(torch.empty(0))
    assert any_is_set(torch.ones(1000))
