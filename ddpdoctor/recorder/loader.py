"""Input wait, and which samples the training's loaders deliver. Nothing is drawn by us."""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, DistributedSampler

from ddpdoctor.events import LoaderInfo, Phase
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.drawn import DrawnSample, as_indices
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.phases import Phases

_EPOCHS_KEPT: Final = 4  # epochs described in full; after that those with a power of two
_WRITE_EVERY_S: Final = 30.0  # what an unfinished epoch drew so far


@dataclass
class _Epoch:
    """One pass over a loader: what was drawn ahead by workers, and what was delivered."""

    sample: DrawnSample
    in_order: bool
    ahead: deque[npt.NDArray[np.int64] | None] = field(default_factory=deque)
    countable: bool = True
    written_s: float = field(default_factory=time.monotonic)


class LoaderHooks:
    """Patches DataLoader's iterators; `remove` restores them."""

    def __init__(self, phases: Phases, facts: FactsFile, sites: CallSites, guard: Guard) -> None:
        self._phases = phases
        self._facts = facts
        self._sites = sites
        self._guard = guard
        self._loaders: weakref.WeakKeyDictionary[DataLoader[Any], int] = weakref.WeakKeyDictionary()
        self._epochs_begun: dict[int, int] = {}
        self._epochs: weakref.WeakKeyDictionary[Any, _Epoch] = weakref.WeakKeyDictionary()
        self._current: dict[int, _Epoch] = {}  # by loader; an exhausted iterator is soon freed
        self._starting = False
        self._drawn_at_start: list[npt.NDArray[np.int64] | None] = []
        self._patched: list[tuple[type, str, Any]] = []
        for kind in private.loader_classes():
            self._patch(kind, "__next__", self._recorded_next)
        self._patch(DataLoader, "__iter__", self._recorded_iter)
        self._patch(private.LOADER_ITERATOR, private.NEXT_INDEX, self._recorded_next_index)

    def _patch(self, kind: type, name: str, make: Any) -> None:
        original = vars(kind)[name]
        self._patched.append((kind, name, original))
        setattr(kind, name, functools.wraps(original)(make(original)))

    def remove(self) -> None:
        for kind, name, original in self._patched:
            setattr(kind, name, original)
        for epoch in self._current.values():
            self._write(epoch)

    def _recorded_iter(self, original: Any) -> Any:
        """The start of an epoch: spawning the workers is waiting for input, too."""

        def __iter__(loader: DataLoader[Any]) -> Any:
            span = self._guard.run(self._begin)
            self._starting = True
            self._drawn_at_start.clear()
            try:
                iterator = original(loader)
            finally:
                self._starting = False
                self._guard.run(self._end, span)
            self._guard.run(self._epoch_begins, loader, iterator)
            return iterator

        return __iter__

    def _recorded_next(self, original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            span = self._guard.run(self._begin)
            try:
                batch = original(iterator)
            except BaseException:
                self._guard.run(self._end, span)
                raise
            self._guard.run(self._end, span)
            self._guard.run(self._delivered, iterator, batch)
            return batch

        return __next__

    def _recorded_next_index(self, original: Any) -> Any:
        def _next_index(iterator: Any) -> Any:
            drawn = original(iterator)
            self._guard.run(self._drawn, iterator, drawn)
            return drawn

        return _next_index

    def _begin(self) -> int:
        if not self._phases.on_training_thread():
            return 0
        site = self._sites.here(sys._getframe(1))
        return self._phases.begin(Phase.INPUT, site, no_grad=not torch.is_grad_enabled())

    def _end(self, span: int | None) -> None:
        if span:
            self._phases.end(span)

    def _epoch_begins(self, loader: DataLoader[Any], iterator: Any) -> None:
        if not torch.is_grad_enabled() or not self._phases.on_training_thread():
            return  # an evaluation
        number = self._loaders.get(loader)
        if number is None:
            number = self._loaders[loader] = len(self._epochs_begun)
            self._epochs_begun[number] = 0
            self._facts.loader(self._describe(number, loader))
        epoch = self._epochs_begun[number]
        self._epochs_begun[number] = epoch + 1
        if number in self._current:
            self._write(self._current[number])
        begun = _Epoch(DrawnSample(number, epoch), private.delivers_in_order(iterator))
        begun.ahead.extend(self._drawn_at_start)
        self._epochs[iterator] = self._current[number] = begun

    def _drawn(self, iterator: Any, drawn: Any) -> None:
        """Workers are sent their first batches within `__iter__`, before an epoch is known."""
        if self._starting:
            self._drawn_at_start.append(as_indices(drawn))
        elif iterator in self._epochs:
            self._epochs[iterator].ahead.append(as_indices(drawn))

    def _delivered(self, iterator: Any, batch: Any) -> None:
        epoch = self._epochs.get(iterator)
        if epoch is None or not epoch.ahead:
            return
        indices = epoch.ahead.popleft()
        if indices is None:
            epoch.countable = False
        if not epoch.countable or indices is None:
            return
        epoch.sample.add(indices, batch, in_order=epoch.in_order)
        if time.monotonic() - epoch.written_s > _WRITE_EVERY_S:
            self._write(epoch)

    def _write(self, epoch: _Epoch) -> None:
        epoch.written_s = time.monotonic()
        number = epoch.sample.epoch
        is_power_of_two = number & (number - 1) == 0
        if epoch.countable and (number < _EPOCHS_KEPT or is_power_of_two):
            self._facts.drawn(epoch.sample.summary())

    def _describe(self, number: int, loader: DataLoader[Any]) -> LoaderInfo:
        sampler = _index_sampler(loader)
        distributed = isinstance(sampler, DistributedSampler)
        return LoaderInfo(
            number,
            type(loader.dataset).__name__,
            _length(loader.dataset),
            type(sampler).__name__,
            sampler.num_replicas if distributed else None,
            sampler.rank if distributed else None,
            bool(getattr(sampler, "replacement", False)),
            loader.batch_size,
            bool(loader.drop_last),
            loader.num_workers,
            self._sites.site(sys._getframe(1)),
        )


def _index_sampler(loader: DataLoader[Any]) -> Any:
    """What draws single indices: the sampler within the batch sampler, if there is one."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return getattr(batch_sampler, "sampler", None) or batch_sampler or loader.sampler


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError, AttributeError, ValueError, RuntimeError):
        return None
