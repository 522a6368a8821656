"""The hash by which ranks keep the same sample of indices, and what can be read from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTORS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


def index_hashes(indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014), the same on every machine."""
    mixed = indices.astype(np.uint64)
    mixed += _GAMMA
    mixed ^= mixed >> _SHIFTS[0]
    mixed *= _FACTORS[0]
    mixed ^= mixed >> _SHIFTS[1]
    mixed *= _FACTORS[1]
    mixed ^= mixed >> _SHIFTS[2]
    return mixed


def index_hash_shares(indices: Sequence[int]) -> list[float]:
    """Each index's hash as a share of the hash's range, in [0, 1]."""
    shares: list[float] = (index_hashes(np.asarray(indices, np.int64)) / 2.0**64).tolist()
    return shares
