"""Which samples a loader delivers: a sample of the indices that is the same on every rank."""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from ddpdoctor.events import DrawnIndices
from ddpdoctor.sketch import index_hashes

KEPT: Final = 2048  # indices kept an epoch before the sampled share is halved
FINGERPRINTS_A_BATCH: Final = 8  # delivered samples looked into per batch
_LEAVES: Final = 4  # tensors of a batch that are looked at
_ELEMENTS: Final = 64  # elements of each tensor that enter a fingerprint
_FULL: Final = 2**64


class DrawnSample:
    """Indices of one loader in one epoch whose hash is below a threshold.

    The threshold halves whenever more than KEPT are held, so memory is bounded and any two
    ranks can be compared on the smaller of their thresholds (a KMV sketch).
    """

    def __init__(self, loader: int, epoch: int) -> None:
        self.loader = loader
        self.epoch = epoch
        self.drawn = 0
        self._limit = _FULL
        self._kept: dict[int, tuple[int, ...] | None] = {}

    def add(self, indices: npt.NDArray[np.int64], batch: Any, *, in_order: bool) -> None:
        """Take in one delivered batch and the indices it was drawn from."""
        self.drawn += len(indices)
        hashes = index_hashes(indices)
        chosen = np.flatnonzero(hashes <= np.uint64(self._limit - 1))
        contents = _Contents(batch, len(indices)) if in_order else None
        for count, position in enumerate(chosen.tolist()):
            index = int(indices[position])
            if index in self._kept:
                continue
            looked_at = contents is not None and count < FINGERPRINTS_A_BATCH
            self._kept[index] = contents.of(position) if looked_at and contents else None
        while len(self._kept) > KEPT:
            self._halve()

    def _halve(self) -> None:
        self._limit //= 2
        kept = np.fromiter(self._kept, np.int64, len(self._kept))
        inside = index_hashes(kept) <= np.uint64(self._limit - 1)
        for index in kept[~inside].tolist():
            del self._kept[index]

    def summary(self) -> DrawnIndices:
        return DrawnIndices(
            self.loader,
            self.epoch,
            self.drawn,
            self._limit / _FULL,
            tuple(self._kept),
            tuple(self._kept.values()),
        )


def as_indices(drawn: Any) -> npt.NDArray[np.int64] | None:
    """What a batch sampler drew, as integers; None for keys of another kind."""
    items = drawn if isinstance(drawn, (list, tuple)) else [drawn]
    if not all(type(item) is int or isinstance(item, np.integer) for item in items):
        return None
    try:
        return np.asarray(items, np.int64)
    except OverflowError:
        return None


class _Contents:
    """Fingerprints of the samples of one delivered batch, row by row."""

    def __init__(self, batch: Any, rows: int) -> None:
        leaves = list(_leaves(batch))
        self._leaves = [leaf for leaf in leaves if leaf.ndim and leaf.shape[0] == rows][:_LEAVES]

    def of(self, row: int) -> tuple[int, ...] | None:
        if not self._leaves:
            return None
        return tuple(_fingerprint(leaf[row]) for leaf in self._leaves)


def _fingerprint(sample: torch.Tensor) -> int:
    flat = sample.detach().reshape(-1)[:_ELEMENTS].contiguous()
    return zlib.crc32(flat.view(torch.uint8).numpy().tobytes())


def _leaves(batch: Any) -> list[torch.Tensor]:
    """Tensors of a collated batch on the host, in a fixed order."""
    if isinstance(batch, torch.Tensor):
        return [batch] if batch.device.type == "cpu" and batch.layout is torch.strided else []
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return [leaf for part in batch[:_LEAVES] for leaf in _leaves(part)]
    return []
