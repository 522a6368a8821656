"""Looks at a model's tensors: which of them are due, and what is read. No state of the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.modelevents import ChangeKind, Digests
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder import checksums
from ddpdoctor.recorder.modelshape import Shape, Watched

FIRST: Final = 128  # before it, reductions whose number is a power of two are looked at
EVERY: Final = 128  # reductions, after that; half as often each time the number has doubled past
SPARSER_FROM: Final = 4096  # this one, so that a long run keeps a few hundred looks
TENSORS: Final = 16  # of a kind at a look; the next look takes the next ones
TENSORS_FIRST: Final = 256  # at the first few looks
MOST_SHARE: Final = 0.002  # of the time between two looks that one may take
MOST_STRIDE: Final = 2**20
MOST_READY_TIMES: Final = 20_000  # parameters; to list the times of more takes too long
_SOME: Final = 4  # gradients that are looked at in every step once one was not finite

Look = TypeVar("Look")


class Schedule:
    """Which reductions of a model are looked at. Ranks with the same cost choose the same ones."""

    def __init__(self) -> None:
        self._stride = EVERY
        self._ended_ns = time.monotonic_ns()

    def is_due(self, sync: int) -> bool:
        if sync % EVERY:  # of which every stride is a multiple
            return sync < FIRST and sync & (sync - 1) == 0
        longer = max(0, (sync // SPARSER_FROM).bit_length())
        return sync % max(self._stride, EVERY << longer) == 0

    def timed(self, sync: int, look: Callable[[], Look]) -> Look:
        """Take a look. One that took too much of the time since the last makes them rarer."""
        began = time.monotonic_ns()
        result = look()
        ended = time.monotonic_ns()
        between = ended - self._ended_ns
        if sync >= FIRST and ended - began > MOST_SHARE * between:
            self._stride = min(MOST_STRIDE, 2 * self._stride)
        self._ended_ns = ended
        return result


def chosen(watched: Sequence[Watched], sync: int) -> Sequence[tuple[int, Watched]]:
    """Some of the watched tensors with their places: others at the next look."""
    count = TENSORS_FIRST if sync < FIRST else TENSORS
    step = max(1, -(-len(watched) // count))
    first = (sync.bit_length() if sync < FIRST else sync // EVERY) % step
    return [(place, watched[place]) for place in range(first, len(watched), step)]


def values(some: Iterable[tuple[int, Watched]], turn: int) -> Digests:
    return checksums.digests(((place, watched.tensor) for place, watched in some), turn)


def gradients(some: Iterable[tuple[int, Watched]], turn: int) -> Digests:
    return checksums.digests(((place, watched.tensor.grad) for place, watched in some), turn)


def has_gradient(shape: Shape) -> bool:
    return any(watched.tensor.grad is not None for watched in shape.parameters)


def has_set_gradient(shape: Shape) -> bool:
    """Whether one of a few gradients is not zero."""
    some = [w.tensor.grad for w in shape.parameters if w.tensor.grad is not None][:_SOME]
    return any(checksums.any_is_set(gradient) for gradient in some)


def some_gradient_is_not_finite(shape: Shape) -> bool:
    """Of a few of them: what is not finite anywhere seldom leaves the others alone."""
    some = [w.tensor.grad for w in shape.parameters if w.tensor.grad is not None][:_SOME]
    return any(checksums.is_finite(gradient) is False for gradient in some)


def not_finite(shape: Shape) -> list[str]:
    """Names of watched parameters whose gradient is not, the last in the model first."""
    return [
        watched.told.name
        for watched in reversed(shape.parameters)
        if watched.tensor.grad is not None and not checksums.all_finite(watched.tensor.grad)
    ]


def a_weight_is_not_finite(shape: Shape) -> bool:
    return any(not checksums.all_finite(watched.tensor) for watched in shape.parameters)


def changes(some: Iterable[tuple[int, Watched]]) -> Iterator[tuple[ChangeKind, str]]:
    """Parameters that are not what they were when the model was wrapped."""
    for _, watched in some:
        told, current = watched.told, watched.current()
        if current is not watched.tensor:
            yield ChangeKind.REPLACED, told.name
        elif current.requires_grad != told.trainable:
            yield ChangeKind.UNFROZEN if current.requires_grad else ChangeKind.FROZEN, told.name
        elif str(current.dtype) != f"torch.{told.dtype}":
            yield ChangeKind.CAST, told.name


class Use:
    """Which parameters took part in one backward: begun before it, asked within, ended after."""

    def __init__(self, model: DistributedDataParallel, shape: Shape) -> None:
        self._shape = shape
        self._before: list[int] = []
        self._used: list[bool] | None = None
        self.is_measured = (
            0 < shape.reduced_count <= MOST_READY_TIMES
            and shape.info.measured
            and not model.static_graph  # the reducer's times come a step later there
        )
        if self.is_measured:
            self._before = private.ready_times(model)

    def computed(self, model: DistributedDataParallel) -> None:
        """All gradients are computed, and DDP has not yet mixed in what other ranks used."""
        if self.is_measured:
            self._used = private.used_parameters(model)

    def gradient_times(
        self, model: DistributedDataParallel
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Places of watched parameters in the order of their gradients, and microseconds."""
        after = private.ready_times(model)
        ready = sorted(
            (after[watched.place], place)
            for place, watched in enumerate(self._shape.parameters)
            if watched.place >= 0 and self._before[watched.place] != after[watched.place] > 0
        )
        return tuple(place for _, place in ready), tuple(ns // 1000 for ns, _ in ready)

    def unused_and_unreduced(
        self, model: DistributedDataParallel
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Places of watched parameters without part in it, and with a gradient of this rank's."""
        after = private.ready_times(model)
        unused: list[int] = []
        unreduced: list[int] = []
        for place, watched in enumerate(self._shape.parameters):
            if watched.place < 0:
                continue
            if self._used is not None:
                if not self._used[watched.place]:
                    unused.append(place)
            elif self._before[watched.place] == after[watched.place]:
                gradient = watched.tensor.grad
                is_set = gradient is not None and checksums.any_is_set(gradient)
                (unreduced if is_set else unused).append(place)
        return tuple(unused), tuple(unreduced)
