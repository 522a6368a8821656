"""Input wait, and which samples the training's loaders deliver. Nothing is drawn by us."""

from __future__ import annotations

import functools
import sys
import time
import weakref
from dataclasses import replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddpdoctor.events import LoaderInfo, Phase
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.drawn import DrawnEpoch, Indices, as_indices, none_if_it_fails
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.feeding import Feeding, Iteration
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.phases import Phases

_EPOCHS_KEPT: Final = 4  # epochs described in full; after that those with a power of two
LOADERS_KEPT: Final = 32  # different loaders that are described
_UNNUMBERED: Final = -1


class LoaderHooks:
    """Patches DataLoader's iterators; `remove` restores them."""

    def __init__(self, phases: Phases, facts: FactsFile, sites: CallSites, guard: Guard) -> None:
        self._phases = phases
        self._facts = facts
        self._sites = sites
        self._guard = guard
        self._world_size = dist.get_world_size() if dist.is_initialized() else 1
        self._feeding = Feeding(phases, self._begins_training)
        self._iterations: weakref.WeakKeyDictionary[Any, Iteration] = weakref.WeakKeyDictionary()
        self._numbers: dict[object, int] = {}
        self._epochs: dict[int, int] = {}  # by loader: those that fed the training so far
        self._current: dict[int, Iteration] = {}  # by loader; an ended iterator is soon freed
        self._starting: list[list[Indices | None]] = []  # drawn so far within each `__iter__`
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
        self._feeding.finish()
        for iteration in self._current.values():
            self._write(iteration)

    def _recorded_iter(self, original: Any) -> Any:
        """The start of an epoch: spawning the workers is waiting for input, too."""

        def __iter__(loader: DataLoader[Any]) -> Any:
            span, began = self._guard.run(self._begin) or (0, 0)
            ahead: list[Indices | None] = []
            here = self._phases.on_training_thread()
            if here:
                self._starting.append(ahead)
            try:
                iterator = original(loader)
            finally:
                if here:
                    self._starting.pop()
                self._guard.run(self._end, span)
            self._guard.run(self._iteration_begins, loader, iterator, ahead, span, began)
            return iterator

        return __iter__

    def _recorded_next(self, original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            span, began = self._guard.run(self._begin) or (0, 0)
            try:
                batch = original(iterator)
            except BaseException as ending:
                self._guard.run(self._ended, iterator, ending, span, began)
                raise
            self._guard.run(self._delivered, iterator, batch, span, began)
            return batch

        return __next__

    def _recorded_next_index(self, original: Any) -> Any:
        def _next_index(iterator: Any) -> Any:
            drawn = original(iterator)
            self._guard.run(self._drawn, iterator, drawn)
            return drawn

        return _next_index

    def _begin(self) -> tuple[int, int]:
        """The serial number of a new input span, and the time."""
        if not self._phases.switch.on or not self._phases.on_training_thread():
            return 0, 0
        self._feeding.settle()
        site = self._sites.here(sys._getframe(1))
        no_grad = not torch.is_grad_enabled()
        return self._phases.begin(Phase.INPUT, site, no_grad=no_grad), time.monotonic_ns()

    def _end(self, span: int) -> None:
        if span:
            self._phases.end(span)

    def _iteration_begins(
        self,
        loader: DataLoader[Any],
        iterator: Any,
        ahead: list[Indices | None],
        span: int,
        began: int,
    ) -> None:
        if not self._phases.on_training_thread():
            return
        previous = self._iterations.get(iterator)
        if previous is not None:  # workers that persist keep their iterator
            previous.ended = True
        info = self._describe(loader)
        drawn = DrawnEpoch(private.delivers_in_order(iterator), self._pass_length(info))
        for indices in ahead:
            drawn.draws(indices)
        iteration = Iteration(info, weakref.ref(iterator), drawn)
        self._iterations[iterator] = iteration
        self._took(iteration, span, began, batch=False)

    def _took(self, iteration: Iteration, span: int, began: int, *, batch: bool) -> None:
        """What is drawn without gradients is no training's, and its span says so already."""
        if span and not torch.is_grad_enabled():
            self._feeding.took_for_evaluation()
        elif span:
            duration_ns = time.monotonic_ns() - began
            self._feeding.took(iteration, span, duration_ns, batch=batch)

    def _drawn(self, iterator: Any, drawn: Any) -> None:
        """Workers are sent their first batches within `__iter__`, before there is an iteration."""
        if self._starting and self._phases.on_training_thread():
            self._starting[-1].append(as_indices(drawn))
        elif iterator in self._iterations:
            self._iterations[iterator].drawn.draws(as_indices(drawn))

    def _ended(self, iterator: Any, ending: BaseException, span: int, began: int) -> None:
        self._end(span)
        iteration = self._iterations.get(iterator)
        if iteration is None:
            return
        iteration.ended = isinstance(ending, StopIteration)
        self._took(iteration, span, began, batch=False)

    def _delivered(self, iterator: Any, batch: Any, span: int, began: int) -> None:
        self._end(span)
        iteration = self._iterations.get(iterator)
        if iteration is None:
            return
        recorded = torch.is_grad_enabled() and self._phases.switch.on
        iteration.drawn.delivers(batch, counts=recorded)
        self._took(iteration, span, began, batch=True)
        if iteration.number is not None and iteration.drawn.write_is_due():
            self._write(iteration)

    def _begins_training(self, iteration: Iteration) -> None:
        """Number its loader, and count the epoch."""
        info = iteration.loader
        key = (info.site, info.dataset, info.dataset_length, info.batch_size)
        number = self._numbers.setdefault(key, len(self._numbers))
        if number >= LOADERS_KEPT:
            self._too_many(key, number)
            return
        if number not in self._epochs:
            self._facts.loader(replace(info, loader=number))
        iteration.number = number
        iteration.epoch = self._epochs.get(number, 0)
        self._epochs[number] = iteration.epoch + 1
        if number in self._current:
            self._write(self._current[number])
        self._current[number] = iteration

    def _too_many(self, key: object, number: int) -> None:
        del self._numbers[key]
        if LOADERS_KEPT in self._epochs:
            return
        self._epochs[number] = 0
        self._facts.note(
            f"more than {LOADERS_KEPT} different loaders feed the training: what the others "
            "draw is not recorded"
        )

    def _write(self, iteration: Iteration) -> None:
        epoch = iteration.epoch
        is_power_of_two = epoch & (epoch - 1) == 0
        if iteration.number is not None and (epoch < _EPOCHS_KEPT or is_power_of_two):
            summary = iteration.drawn.summary(iteration.number, epoch)
            if summary is not None:
                self._facts.drawn(summary)

    def _pass_length(self, info: LoaderInfo) -> int | None:
        """How many samples of the dataset fall to one rank."""
        ranks = info.sampler_replicas or self._world_size
        return info.dataset_length // ranks if info.dataset_length else None

    def _describe(self, loader: DataLoader[Any]) -> LoaderInfo:
        sampler = _index_sampler(loader)
        distributed = isinstance(sampler, DistributedSampler)
        return LoaderInfo(
            _UNNUMBERED,
            type(loader.dataset).__name__,
            none_if_it_fails(len, loader.dataset),
            type(sampler).__name__,
            sampler.num_replicas if distributed else None,
            sampler.rank if distributed else None,
            none_if_it_fails(_draws_with_replacement, sampler) or False,
            loader.batch_size,
            bool(loader.drop_last),
            loader.num_workers,
            self._sites.site(sys._getframe(1)),
        )


def _index_sampler(loader: DataLoader[Any]) -> Any:
    """What draws single indices: the sampler within the batch sampler, if there is one."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    inner = getattr(batch_sampler, "sampler", None)
    return next(one for one in (inner, batch_sampler, loader.sampler) if one is not None)


def _draws_with_replacement(sampler: Any) -> bool:
    return bool(getattr(sampler, "replacement", False))
