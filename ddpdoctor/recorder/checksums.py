"""Digests of a few elements of many tensors, in a few operations. CPU only, nothing is copied back.

Elements are taken in the order of memory, evenly spread, from a place that `turn` moves on, so that
later looks see others. Ranks that take the same turn look at the same elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from ddpdoctor.modelevents import Digests

ELEMENTS: Final = 16  # of a tensor: their cache misses are most of what a look costs
_LARGEST: Final = 1e300  # of a size that is kept
_DIGEST_BITS: Final = 62
_WORD: Final = 8  # bytes; larger elements (complex128) are two words
_MIX: Final = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio: its multiples are spread
_SMALL: Final = 16_384  # elements that are summed up whole to find what is not finite

_counts = np.arange(1, 2 * ELEMENTS + 1, dtype=np.uint64)
_weights = (_counts * np.uint64(_MIX)) ^ ((_counts * np.uint64(_MIX)) >> np.uint64(29))
_WEIGHTS: Final[npt.NDArray[np.uint64]] = _weights | np.uint64(1)


def is_readable(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in this process's memory, in strides."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return False
    return bool(tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_quantized)


def digests(tensors: Iterable[tuple[int, torch.Tensor | None]], turn: int) -> Digests:
    """Digest and size of each tensor, by its place. Those that cannot be read are left out."""
    by_type: dict[torch.dtype, list[tuple[int, torch.Tensor]]] = {}
    with torch.no_grad():
        for place, tensor in tensors:
            taken = _take(tensor, turn) if tensor is not None else None
            if taken is not None:
                by_type.setdefault(taken.dtype, []).append((place, taken))
        found = [row for pieces in by_type.values() for row in _rows(pieces)]
    if not found:
        return Digests()
    found.sort()
    places, hashes, sizes = zip(*found, strict=True)
    return Digests(places, hashes, sizes)


def is_finite(tensor: torch.Tensor) -> bool | None:
    """Whether the elements, or of a large tensor a spread of them, are; None: cannot be read."""
    if not is_readable(tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    part = tensor if tensor.numel() <= _SMALL else _take(tensor, 0)
    if part is None:
        return None
    if isfinite(abs(part.detach().sum().item())):
        return True
    return all_finite(part)  # the sum of large numbers, as a loss scaler makes them, is not


def any_is_set(tensor: torch.Tensor) -> bool:
    """Whether an element, or of a large tensor one of a spread, is not zero."""
    taken = _take(tensor.detach(), 0)
    return taken is not None and bool(taken.any())


def all_finite(tensor: torch.Tensor) -> bool:
    """Whether every element is. Costs a pass over the tensor; True where it cannot be read."""
    if not is_readable(tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    with torch.no_grad():
        return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _take(tensor: torch.Tensor, turn: int) -> torch.Tensor | None:
    """Up to ELEMENTS of it, as a view."""
    if not is_readable(tensor):
        return None
    count = tensor.numel()
    if not count or not (tensor.is_contiguous() or _is_dense(tensor)):
        return None
    step = max(1, count // ELEMENTS)
    first = turn % step
    taken = min(ELEMENTS, -(-(count - first) // step))
    return tensor.as_strided((taken,), (step,), tensor.storage_offset() + first)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether it fills its part of memory, in whatever order of dimensions."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in pairs)
    return extent == tensor.numel()


def _rows(pieces: Sequence[tuple[int, torch.Tensor]]) -> list[tuple[int, int, float | None]]:
    """Place, digest and size of pieces of one type."""
    joined = torch.cat([piece for _, piece in pieces])
    lengths = np.array([len(piece) for _, piece in pieces])
    starts = np.cumsum(lengths) - lengths
    hashes = _hashes(joined, lengths, starts)
    magnitudes = joined.abs() if joined.is_complex() else joined.to(torch.float64).abs()
    sums = np.add.reduceat(magnitudes.to(torch.float64).numpy(), starts)
    sizes = (sums / lengths).tolist()
    return [
        (place, digest, size if size < _LARGEST else None)
        for (place, _), digest, size in zip(pieces, hashes, sizes, strict=True)
    ]


def _hashes(joined: torch.Tensor, lengths: npt.NDArray[Any], starts: npt.NDArray[Any]) -> list[int]:
    """Of each piece a sum of its words, each multiplied by what belongs to its place."""
    size = joined.element_size()
    per_element = max(1, size // _WORD)
    raw = joined.view(torch.uint8).numpy().view(f"u{min(size, _WORD)}")
    words = raw.astype(np.uint64)
    within = np.arange(len(words)) - np.repeat(starts, lengths * per_element) * per_element
    products = words * _WEIGHTS[within]
    totals = np.add.reduceat(products, starts * per_element)
    return [int(total) >> (64 - _DIGEST_BITS) for total in totals]
