"""What one pass over a loader delivered: how many batches, how large, in which order."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import torch

from ddpdoctor.deliveries import LoaderEpoch
from ddpdoctor.recorder.drawn import Indices
from ddpdoctor.recorder.guard import none_if_it_fails

_ELEMENTS_KEPT: Final = 2048  # batches whose size is kept
_FIRST_INDICES: Final = 16
_DEPTH: Final = 4  # nesting of containers around a batch's first tensor
_Shape = tuple[int, ...]


class Pass:
    """Counts what is delivered. A batch costs it a few microseconds, whatever its size."""

    def __init__(self, sampler_epoch: int | None, base_seed: int | None, sync: int) -> None:
        self.batches = 0
        self.is_whole = True  # every batch was counted
        self.first_sync = sync
        self._sampler_epoch = sampler_epoch
        self._base_seed = base_seed
        self._samples: int | None = 0
        self._rows: list[int | None] = [None, None, None, None]  # first, last, least, most
        self._shape: _Shape = ()
        self._elements: list[int] = []
        self._vary = False
        self._order_hash = 0
        self._order: list[int] = []
        self._first_indices: list[int] = []
        self._ended_sync: int | None = None

    def delivers(self, batch: Any, indices: Indices | None) -> None:
        self.batches += 1
        shape = _shape(batch)
        if indices is not None:
            self._in_order(indices)
            self._has_rows(len(indices))
        else:
            self._has_rows(shape[0] if shape else None)
        if shape is not None:
            self._has_elements(shape)

    @property
    def is_power_of_two(self) -> bool:
        return self.batches & (self.batches - 1) == 0

    def ends(self, sync: int) -> None:
        """The loader said that it has no more."""
        self._ended_sync = sync

    def _in_order(self, indices: Indices) -> None:
        self._order_hash = zlib.crc32(indices.tobytes(), self._order_hash)
        if self.is_power_of_two:
            self._order.append(self._order_hash)
        if len(self._first_indices) < _FIRST_INDICES:
            self._first_indices += indices[:_FIRST_INDICES].tolist()

    def _has_rows(self, rows: int | None) -> None:
        if rows is None or self._samples is None:
            self._samples = None
            return
        self._samples += rows
        first, _, least, most = self._rows
        if first is None or least is None or most is None:
            self._rows = [rows] * 4
            return
        self._rows[1] = rows
        if rows < least:
            self._rows[2] = rows
        elif rows > most:
            self._rows[3] = rows

    def _has_elements(self, shape: _Shape) -> None:
        if not self._elements:
            self._shape = shape
        if len(self._elements) < _ELEMENTS_KEPT:
            elements = 1
            for extent in shape:
                elements *= extent
            self._elements.append(elements)
            self._vary = self._vary or elements != self._elements[0]

    def summary(self, loader: int, epoch: int, sync: int) -> LoaderEpoch:
        """As far as it came, `sync` synchronised backwards into the training."""
        first, last, least, most = self._rows
        return LoaderEpoch(
            loader=loader,
            epoch=epoch,
            batches=self.batches,
            samples=self._samples,
            ended=self._ended_sync is not None,
            first_sync=self.first_sync,
            last_sync=sync if self._ended_sync is None else self._ended_sync,
            sampler_epoch=self._sampler_epoch,
            base_seed=self._base_seed,
            first_rows=first,
            last_rows=last,
            least_rows=least,
            most_rows=most,
            shape=self._shape,
            elements=tuple(self._elements if self._vary else self._elements[:1]),
            order=tuple(self._order),
            first_indices=tuple(self._first_indices[:_FIRST_INDICES]),
        )


def _shape(batch: Any) -> _Shape | None:
    """Of the first tensor in a batch; None where there is none."""
    for _ in range(_DEPTH):
        if type(batch) is torch.Tensor:
            return batch.shape
        if isinstance(batch, torch.Tensor):
            return none_if_it_fails(tuple, none_if_it_fails(getattr, batch, "shape"))
        if isinstance(batch, (list, tuple)) and batch:
            batch = batch[0]
        elif isinstance(batch, Mapping) and batch:
            batch = none_if_it_fails(_first_value, batch)
        else:
            return None
    return None


def _first_value(batch: Mapping[Any, Any]) -> Any:
    return next(iter(batch.values()))
