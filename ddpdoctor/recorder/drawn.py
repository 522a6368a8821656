"""Which samples a loader delivers: a sample of the indices that is the same on every rank."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from ddpdoctor.events import DrawnIndices
from ddpdoctor.recorder.contents import Contents
from ddpdoctor.recorder.guard import none_if_it_fails
from ddpdoctor.sketch import index_hashes, lowest

KEPT: Final = 2048  # indices kept an epoch before the sampled share is halved
LOOKED_INTO: Final = 512  # of these, samples looked into before that share is halved
_FULL: Final = 2**64
_FIRST_WRITE_S: Final = 30.0  # then at twice the time, so that a long epoch is written seldom
_REPEATS_OF_ONE_PASS: Final = 0.002  # a sampler that ends draws an index once

Indices = npt.NDArray[np.int64]
_New = tuple[int, int, int]  # position in the batch, index, its hash


class DrawnSample:
    """Indices of one loader in one epoch whose hash is below a threshold.

    The threshold halves whenever more than KEPT are held, so memory is bounded and any two
    ranks can be compared on the smaller of their thresholds (a KMV sketch). Those with the
    lowest hashes are looked into, so that ranks look into the same ones, and ever fewer a batch.
    """

    def __init__(self) -> None:
        self.drawn = 0
        self._limit = _FULL
        self._kept: dict[int, tuple[int, ...] | None] = {}
        self._look_limit = _FULL
        self._looked_into: list[int] = []  # hashes
        self._levels: dict[int, float] = {}
        self._times: dict[int, int] = {}  # how often each was drawn after the first time

    def add(self, indices: Indices, batch: Any, *, in_order: bool) -> None:
        """Take in one delivered batch and the indices it was drawn from."""
        self.drawn += len(indices)
        new: list[_New] = []
        for one in lowest(indices, self._limit):
            index = one[1]
            if index in self._kept:
                self._times[index] = self._times.get(index, 0) + 1
            else:
                self._kept[index] = None
                new.append(one)
        if new and in_order:
            self._look_into_those(new, len(indices), batch)
        while len(self._kept) > KEPT:
            self._halve()

    def _look_into_those(self, new: list[_New], rows: int, batch: Any) -> None:
        """The samples at these positions, as far as their hashes are low enough."""
        low = [one for one in new if one[2] < self._look_limit]
        while len(self._looked_into) + len(low) > LOOKED_INTO:
            self._look_limit //= 2
            self._looked_into = [one for one in self._looked_into if one < self._look_limit]
            low = [one for one in low if one[2] < self._look_limit]
        contents = none_if_it_fails(Contents, batch, rows) if low else None
        if contents is None:
            return
        self._looked_into.extend(hashed for _, _, hashed in low)
        positions, numbers = [one[0] for one in low], [one[1] for one in low]
        looks = none_if_it_fails(contents.look, positions, numbers) or ()
        for index, look in zip(numbers, looks, strict=False):  # none, or one of each
            self._kept[index] = look.fingerprints or None
            if look.level is not None:
                self._levels[index] = look.level

    def _halve(self) -> None:
        self._limit //= 2
        kept = np.fromiter(self._kept, np.int64, len(self._kept))
        inside = index_hashes(kept) <= np.uint64(self._limit - 1)
        for index in kept[~inside].tolist():
            del self._kept[index]
            self._times.pop(index, None)
            self._levels.pop(index, None)

    @property
    def repeats(self) -> int:
        return sum(self._times.values())

    def summary(self, loader: int, epoch: int) -> DrawnIndices:
        return DrawnIndices(
            loader,
            epoch,
            self.drawn,
            self._limit / _FULL,
            tuple(self._kept),
            tuple(self._kept.values()),
            self.repeats,
            tuple(map(self._levels.get, self._kept)),
        )


class DrawnEpoch:
    """What one iteration drew ahead (for its workers) and what it delivered.

    A sampler without an end goes through the dataset again and again, and in its second pass
    a rank draws what others had in the first. Such a one tells itself by drawing an index
    twice; of it only the first pass is kept.
    """

    def __init__(self, in_order: bool, pass_length: int | None) -> None:
        self._in_order = in_order
        self._pass_length = pass_length
        self._ahead: deque[Indices | None] = deque()
        self._sample = DrawnSample()
        self._first_pass: DrawnIndices | None = None
        self._countable = True
        self._written_s = time.monotonic()
        self._write_after_s = _FIRST_WRITE_S

    def draws(self, indices: Indices | None) -> None:
        self._ahead.append(indices)

    def delivers(self, batch: Any, *, counts: bool) -> Indices | None:
        """A batch of the indices that were drawn first; one for an evaluation counts not.

        Returns its indices, as far as they are known.
        """
        if not self._ahead:
            return None
        indices = self._ahead.popleft()
        self._countable &= indices is not None
        if indices is None or not self._countable or not counts:
            return indices
        after = self._sample.drawn + len(indices)
        if self._first_pass is None and self._pass_length and after > self._pass_length:
            self._first_pass = self._sample.summary(0, 0)
        self._sample.add(indices, batch, in_order=self._in_order)
        return indices

    def write_is_due(self) -> bool:
        """Whether to write what there is of an unfinished epoch."""
        due = time.monotonic() - self._written_s > self._write_after_s
        if due:
            self._written_s = time.monotonic()
            self._write_after_s *= 2
        return due

    def summary(self, loader: int, epoch: int) -> DrawnIndices | None:
        """None where the indices are no integers, or there are none (an iterable dataset)."""
        if not self._countable or not self._sample.drawn:
            return None
        whole = self._sample.summary(loader, epoch)
        if self._first_pass is None or not _is_endless(whole):
            return whole
        return replace(self._first_pass, loader=loader, epoch=epoch)


def _is_endless(drawn: DrawnIndices) -> bool:
    return drawn.repeats > max(2, _REPEATS_OF_ONE_PASS * len(drawn.indices))


def as_indices(drawn: Any) -> Indices | None:
    """What a batch sampler drew, as integers; None for keys of another kind."""
    if isinstance(drawn, (np.ndarray, torch.Tensor)):
        drawn = drawn.tolist()
    items = drawn if isinstance(drawn, (list, tuple)) else [drawn]
    if not _are_integers(items):
        items = [_plain(item) for item in items]
        if not _are_integers(items):
            return None
    try:
        return np.asarray(items, np.int64)
    except OverflowError:
        return None


def _are_integers(items: Sequence[Any]) -> bool:
    return {int}.issuperset(map(type, items))


def _plain(item: Any) -> Any:
    """Samplers that go through `torch.randperm` yield tensors."""
    if isinstance(item, np.integer) or (isinstance(item, torch.Tensor) and item.ndim == 0):
        return item.item()
    return item
