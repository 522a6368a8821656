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
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader

from ddpdoctor.deliveries import Evaluated
from ddpdoctor.events import Held, LoaderInfo, Phase
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.describing import describe, holdings, sampler_epoch
from ddpdoctor.recorder.drawn import DrawnEpoch, Indices, as_indices
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.feeding import Feeding, Iteration
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.passes import Pass
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.randomness import RandomLooks
from ddpdoctor.recorder.streamed import Stream

_EPOCHS_KEPT: Final = 4  # epochs described in full; after that those with a power of two
LOADERS_KEPT: Final = 32  # different loaders that are described
_HOLDINGS_KEPT: Final = 64  # loaders, those of evaluations too, whose dataset was looked at
_WRITTEN_FROM: Final = 4  # batches; from then on at every power of two, so that a hang leaves it


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
        self._last: Iteration | None = None  # that was asked for
        self._numbers: dict[object, int] = {}
        self._epochs: dict[int, int] = {}  # by loader: those that fed the training so far
        self._current: dict[int, Iteration] = {}  # by loader; an ended iterator is soon freed
        self._starting: list[list[Indices | None]] = []  # drawn so far within each `__iter__`
        self._holdings: dict[object, dict[str, Held]] = {}  # by the key of the loader
        self._evaluated: set[object] = set()  # keys of loaders
        self._looks = RandomLooks()
        self._joins = 0  # `Join` contexts that are open
        self._patched: list[tuple[type, str, Any]] = []
        for kind in private.loader_classes():
            self._patch(kind, "__next__", self._recorded_next)
        self._patch(DataLoader, "__iter__", self._recorded_iter)
        self._patch(private.LOADER_ITERATOR, private.NEXT_INDEX, self._recorded_next_index)
        self._patch(Join, "__enter__", self._recorded_join(1))
        self._patch(Join, "__exit__", self._recorded_join(-1))

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
            span, began = self._guard.run(self._begin, iterator) or (0, 0)
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

    def _recorded_join(self, change: int) -> Any:
        def make(original: Any) -> Any:
            def changes_joins(join: Any, *arguments: Any) -> Any:
                self._joins += change * private.evens_out(join)
                return original(join, *arguments)

            return changes_joins

        return make

    def _begin(self, iterator: Any = None) -> tuple[int, int]:
        """The serial number of a new input span, and the time."""
        if not self._phases.switch.on or not self._phases.on_training_thread():
            return 0, 0
        self._feeding.settle()
        seen = self._looks.asked(iterator)
        if seen is not None:
            self._facts.random(seen)
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
        info = self._described(loader)
        drawn = DrawnEpoch(private.delivers_in_order(iterator), self._pass_length(info))
        for indices in ahead:
            drawn.draws(indices)
        passing = Pass(sampler_epoch(loader), private.base_seed(iterator), self._phases.sync)
        stream = Stream() if info.iterable else None
        iteration = Iteration(info, weakref.ref(iterator), drawn, passing, stream)
        self._iterations[iterator] = self._last = iteration
        self._took(iteration, span, began, batch=False)

    def _described(self, loader: DataLoader[Any]) -> LoaderInfo:
        """With what its dataset holds, looked at once. The pass before is over."""
        info = describe(loader, self._sites.site(sys._getframe(1)), joined=self._joins > 0)
        key = _key(info)
        before = self._current.get(self._numbers.get(key, -1))
        if before is not None and before.left_sync is None:
            before.left_sync = self._phases.sync
        if key not in self._holdings and len(self._holdings) < _HOLDINGS_KEPT:
            self._holdings[key] = holdings(loader.dataset)
        return replace(info, holdings=self._holdings.get(key, {}))

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
            return
        iteration = self._iteration_of(iterator)
        if iteration is not None:
            iteration.drawn.draws(as_indices(drawn))

    def _iteration_of(self, iterator: Any) -> Iteration | None:
        last = self._last
        if last is None or last.iterator() is not iterator:
            self._last = last = self._iterations.get(iterator)
        return last

    def _ended(self, iterator: Any, ending: BaseException, span: int, began: int) -> None:
        self._end(span)
        iteration = self._iteration_of(iterator)
        if iteration is None:
            return
        iteration.ended = isinstance(ending, StopIteration)
        self._took(iteration, span, began, batch=False)
        if iteration.ended:
            iteration.passing.ends(self._phases.sync)
            self._write_pass(iteration)
            if iteration.evaluated:
                self._was_evaluated(iteration.loader, iteration.evaluated)

    def _delivered(self, iterator: Any, batch: Any, span: int, began: int) -> None:
        self._end(span)
        iteration = self._iteration_of(iterator)
        if iteration is None:
            return
        if torch.is_grad_enabled():
            self._delivered_with_gradients(iteration, batch)
        else:
            iteration.evaluates(iteration.drawn.delivers(batch, counts=False))
        self._took(iteration, span, began, batch=True)
        if iteration.number is not None and iteration.drawn.write_is_due():
            self._write(iteration)

    def _delivered_with_gradients(self, iteration: Iteration, batch: Any) -> None:
        """A batch that may be for the training."""
        passing = iteration.passing
        kept = iteration.number is None or _is_kept(iteration.epoch)  # not known at first
        counts = kept and self._phases.switch.on
        indices = iteration.drawn.delivers(batch, counts=counts)
        if not counts:
            passing.is_whole = False
            self._looks.forget()
            return
        passing.delivers(batch, indices)
        if iteration.stream is not None and iteration.stream.delivers(batch):
            self._write(iteration)
        self._looks.delivered(iteration)
        if passing.batches >= _WRITTEN_FROM and passing.is_power_of_two:
            self._write_pass(iteration)

    def _was_evaluated(self, info: LoaderInfo, samples: int) -> None:
        """The loader was gone through without gradients; told once of each that splits its data."""
        known = len(self._evaluated)
        if info.sampler_replicas is None or known >= LOADERS_KEPT or _key(info) in self._evaluated:
            return
        self._evaluated.add(_key(info))
        self._facts.evaluated(Evaluated(replace(info, loader=known), samples))

    def _begins_training(self, iteration: Iteration) -> None:
        """Number its loader, and count the epoch."""
        info = iteration.loader
        key = _key(info)
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
        self._write_pass(iteration)
        if iteration.number is None or not _is_kept(iteration.epoch):
            return
        drawn = iteration.drawn.summary(iteration.number, iteration.epoch)
        if drawn is not None:
            self._facts.drawn(drawn)
        if iteration.stream is not None:
            streamed = iteration.stream.summary(iteration.number, iteration.epoch)
            if streamed is not None:
                self._facts.streamed(streamed)

    def _write_pass(self, iteration: Iteration) -> None:
        """The little that tells how far it came; also while it is under way."""
        if not iteration.passing.is_whole:  # recording was off meanwhile
            return
        if iteration.number is None or not _is_kept(iteration.epoch):
            return
        sync = self._phases.sync if iteration.left_sync is None else iteration.left_sync
        self._facts.epoch(iteration.passing.summary(iteration.number, iteration.epoch, sync))

    def _pass_length(self, info: LoaderInfo) -> int | None:
        """How many samples of the dataset fall to one rank."""
        ranks = info.sampler_replicas or self._world_size
        return info.dataset_length // ranks if info.dataset_length else None


def _key(info: LoaderInfo) -> tuple[object, ...]:
    """By which a loader that is made anew is known again."""
    return (info.site, info.dataset, info.dataset_length, info.batch_size)


def _is_kept(epoch: int) -> bool:
    return epoch < _EPOCHS_KEPT or epoch & (epoch - 1) == 0
