"""Which samples a stream delivers: an iterable dataset has no indices, so content must tell."""

from __future__ import annotations

import zlib
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from ddpdoctor.deliveries import StreamedSamples
from ddpdoctor.recorder.contents import leaves
from ddpdoctor.recorder.guard import none_if_it_fails
from ddpdoctor.sketch import index_hashes

BATCHES_LOOKED_AT: Final = 64  # of a pass: the same stream shows in its first
ROWS_LOOKED_AT: Final = 64  # samples of each
KEPT: Final = 1024  # hashes kept of a pass
_COLUMNS: Final = 16  # elements of each tensor of a sample, evenly spread over it
_TENSORS: Final = 2  # of a sample
_CHARACTERS: Final = 1000

Hashes = npt.NDArray[np.int64]


class Stream:
    """Hashes of what the first batches of one pass held."""

    def __init__(self) -> None:
        self._hashes: list[Hashes] = []
        self._batches: list[int] = []
        self._looked_at = 0

    def delivers(self, batch: Any) -> bool:
        """Look into one batch; returns whether it was the last that is looked into."""
        if self._looked_at >= BATCHES_LOOKED_AT:
            return False
        self._looked_at += 1
        hashes = none_if_it_fails(sample_hashes, batch)
        if hashes is not None and len(hashes):
            self._hashes.append(hashes)
            self._batches.append(zlib.crc32(hashes.tobytes()))
        return self._looked_at == BATCHES_LOOKED_AT

    def summary(self, loader: int, epoch: int) -> StreamedSamples | None:
        """None where no batch could be looked into."""
        if not self._hashes:
            return None
        seen = np.concatenate(self._hashes)
        distinct = np.unique(seen)
        kept = distinct[:KEPT]
        limit = 2**63 - 1 if len(kept) == len(distinct) else int(kept[-1]) + 1
        return StreamedSamples(
            loader, epoch, len(seen), len(distinct), limit, tuple(kept.tolist()),
            tuple(self._batches),
        )  # fmt: skip


def sample_hashes(batch: Any) -> Hashes | None:
    """A hash of each sample of a batch (63 bits); None where its samples cannot be told apart."""
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], (str, bytes)):
        return _spread([zlib.crc32(_bytes(text)) for text in batch[:ROWS_LOOKED_AT]])
    tensors = list(islice(leaves(batch, 4), _TENSORS))
    if not tensors:
        return None
    rows = tensors[0].shape[0] if tensors[0].ndim else 0
    stacked = [t for t in tensors if t.ndim and t.shape[0] == rows]
    if not rows or (tensors[0].ndim == 1 and len(stacked) < len(tensors)):
        return None
    raw = np.concatenate([_rows(tensor[:ROWS_LOOKED_AT]) for tensor in stacked], axis=1)
    width, text = raw.shape[1], raw.tobytes()
    return _spread([zlib.crc32(text[at : at + width]) for at in range(0, len(text), width)])


def _bytes(text: str | bytes) -> bytes:
    return text[:_CHARACTERS].encode(errors="replace") if isinstance(text, str) else text


def _rows(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of some elements of each row."""
    flat = tensor.detach().reshape(tensor.shape[0], -1)
    step = max(1, -(-flat.shape[1] // _COLUMNS))
    raw: npt.NDArray[np.uint8] = flat[:, ::step].contiguous().view(torch.uint8).numpy()
    return raw


def _spread(numbers: list[int]) -> Hashes:
    """As hashes that are even in their upper bits, too."""
    return (index_hashes(np.array(numbers, np.int64)) >> np.uint64(1)).astype(np.int64)
