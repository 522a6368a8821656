"""What the samples of a delivered batch hold: fingerprints, and a level that survives cropping."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from ddpdoctor.events import INDEX_ITSELF

_LEAVES: Final = 4  # tensors of a sample that are looked at
_LEAVES_OF_A_BATCH: Final = 64  # more may be a list of samples
_DEPTH: Final = 4  # nesting of containers in which they are looked for
_ELEMENTS: Final = 64  # elements of each tensor that enter a fingerprint
_LEVEL_LEAST: Final = 4  # elements; fewer are labels
_LEVEL_MOST: Final = 1024  # elements, evenly spread, whose mean is taken


@dataclass(frozen=True)
class Look:
    """A fingerprint of each tensor of a sample; `level` is the mean of the first large one."""

    fingerprints: tuple[int, ...]
    level: float | None


class Contents:
    """One delivered batch, to be looked into row by row."""

    def __init__(self, batch: Any, rows: int) -> None:
        found = list(islice(leaves(batch, _DEPTH), _LEAVES_OF_A_BATCH))
        stacked = [leaf for leaf in found if leaf.ndim and leaf.shape[0] == rows]
        self._samples = _samples(batch, rows) if len(stacked) < len(found) else []
        self._leaves = [] if self._samples else stacked[:_LEAVES]

    def look(self, rows: list[int], indices: list[int]) -> list[Look]:
        """At the samples in these rows; without fingerprints where they cannot be taken apart."""
        if self._samples:
            return [self._look_at_one(row, index) for row, index in zip(rows, indices, strict=True)]
        return _looks([_part(leaf, rows) for leaf in self._leaves], indices)

    def _look_at_one(self, row: int, index: int) -> Look:
        parts = islice(leaves(self._samples[row], _DEPTH), _LEAVES)
        (look,) = _looks([_part(part[None], [0]) for part in parts], [index])
        return look


def _samples(batch: Any, rows: int) -> list[Any]:
    """Of a batch that was not stacked: its samples, or none where it has another form.

    `collate_fn=list` gives a list of samples; `tuple(zip(*samples))`, as detection has it,
    one list of all images and one of all targets. Two samples of two parts may be either.
    """
    if not isinstance(batch, (list, tuple)) or rows < 2:
        return []
    columns = bool(batch) and all(
        isinstance(part, (list, tuple)) and len(part) == rows for part in batch
    )
    if columns and len(batch) != rows:
        return list(zip(*batch, strict=True))
    return list(batch) if len(batch) == rows and not columns else []


@dataclass(frozen=True)
class _Part:
    """One tensor of each sample. `heads`: its first elements; `spread`: some of all of it."""

    heads: npt.NDArray[Any]  # rows by elements
    spread: npt.NDArray[Any]
    elements: int  # of a sample


def _part(leaf: torch.Tensor, rows: list[int]) -> _Part:
    """Copies only what is looked at, where the leaf lies in memory in the order of its indices."""
    array = _as_array(leaf)
    if not array.flags.c_contiguous:
        array, rows = array[rows], list(range(len(rows)))
    elements = math.prod(array.shape[1:])
    flat = array.reshape(len(array), elements)
    every = max(1, -(-elements // _LEVEL_MOST))
    return _Part(flat[rows, :_ELEMENTS], flat[rows, ::every], elements)


def _as_array(leaf: torch.Tensor) -> npt.NDArray[Any]:
    try:
        return leaf.detach().numpy()
    except TypeError:  # bfloat16 and the like, which numpy does not know
        return leaf.detach().to(torch.float32).numpy()


def _looks(parts: list[_Part], indices: list[int]) -> list[Look]:
    hashed = [_fingerprints(part, indices) for part in parts]
    fingerprints = list(zip(*hashed, strict=True)) or [()] * len(indices)
    large = next((part for part in parts if _has_level(part)), None)
    levels = _levels(large.spread) if large is not None else [None] * len(indices)
    return [Look(*each) for each in zip(fingerprints, levels, strict=True)]


def _has_level(part: _Part) -> bool:
    return part.elements >= _LEVEL_LEAST and not np.iscomplexobj(part.spread)


def _fingerprints(part: _Part, indices: list[int]) -> list[int]:
    hashed = [zlib.crc32(row.tobytes()) for row in part.heads]
    if part.elements != 1:
        return hashed
    values = part.heads[:, 0].tolist()
    return [
        INDEX_ITSELF if value == index else fingerprint
        for value, index, fingerprint in zip(values, indices, hashed, strict=True)
    ]


def _levels(spread: npt.NDArray[Any]) -> list[float | None]:
    """Their means, which images mostly keep when they are cropped or flipped."""
    with np.errstate(all="ignore"):
        means = spread.mean(axis=1, dtype=np.float32).tolist()
    return [float(f"{mean:.6g}") if math.isfinite(mean) else None for mean in means]


def leaves(batch: Any, depth: int) -> Iterator[torch.Tensor]:
    """Tensors of a batch whose bytes can be read, in a fixed order."""
    if isinstance(batch, torch.Tensor):
        if _is_readable(batch):
            yield batch
    elif depth > 0:
        if isinstance(batch, Mapping):
            batch = list(batch.values())
        if isinstance(batch, (list, tuple)):
            for part in batch:
                yield from leaves(part, depth - 1)


def _is_readable(tensor: torch.Tensor) -> bool:
    """On the host, and laid out as its elements are."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )
