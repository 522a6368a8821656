"""The hash by which ranks keep the same sample of indices, and what can be read from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

_GAMMA: Final = 0x9E3779B97F4A7C15
_FACTORS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS: Final = (30, 27, 31)
_BITS: Final = 2**64 - 1
_FEW: Final = 32  # up to so many, plain integers are faster than an array


def index_hashes(indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014), the same on every machine."""
    first, second, last = map(np.uint64, _SHIFTS)
    mixed = indices.astype(np.uint64)
    mixed += np.uint64(_GAMMA)
    mixed ^= mixed >> first
    mixed *= np.uint64(_FACTORS[0])
    mixed ^= mixed >> second
    mixed *= np.uint64(_FACTORS[1])
    mixed ^= mixed >> last
    return mixed


def lowest(indices: npt.NDArray[np.int64], limit: int) -> list[tuple[int, int, int]]:
    """Position, index and hash of each of them whose hash is below the limit (at most 2^64)."""
    if len(indices) <= _FEW:
        return _lowest_of_few(indices.tolist(), limit)
    hashes = index_hashes(indices)
    below = np.flatnonzero(hashes <= np.uint64(limit - 1))
    return list(zip(below.tolist(), indices[below].tolist(), hashes[below].tolist(), strict=True))


def _lowest_of_few(indices: list[int], limit: int) -> list[tuple[int, int, int]]:
    (shift, next_shift, last_shift), (factor, next_factor) = _SHIFTS, _FACTORS
    found = []
    for position, index in enumerate(indices):
        mixed = (index + _GAMMA) & _BITS
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _BITS
        mixed = ((mixed ^ (mixed >> next_shift)) * next_factor) & _BITS
        mixed ^= mixed >> last_shift
        if mixed < limit:
            found.append((position, index, mixed))
    return found


def index_hash_shares(indices: Sequence[int]) -> list[float]:
    """Each index's hash as a share of the hash's range, in [0, 1]."""
    shares: list[float] = (index_hashes(np.asarray(indices, np.int64)) / 2.0**64).tolist()
    return shares
