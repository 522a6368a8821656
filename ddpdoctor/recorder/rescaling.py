"""What becomes of gradients between their reduction and the optimizer step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import torch

from ddpdoctor.modelevents import ModelSample, Rescaled, Summed
from ddpdoctor.recorder import checksums
from ddpdoctor.recorder.modelshape import Shape

_GRADIENTS: Final = 8  # that are compared
_SUMS: Final = 4  # of the script in a step, after each of which they are compared, too


class Reduced:
    """Some gradients as a reduction left them."""

    def __init__(self, shape: Shape, sample: ModelSample) -> None:
        reduced = sample.gradients
        sizes = zip(reduced.tensors[:_GRADIENTS], reduced.sizes[:_GRADIENTS], strict=True)
        known = [(shape.parameters[place].tensor, size) for place, size in sizes if size]
        self._model, self._sync = sample.model, sample.sync
        self._tensors = [weakref.ref(tensor) for tensor, _ in known]  # the model may be gone first
        self._sizes = tuple(size for _, size in known)
        self._sums: list[tuple[Summed, tuple[float, ...]]] = []  # with the sizes by then

    @property
    def takes_sums(self) -> bool:
        return bool(self._tensors) and len(self._sums) < _SUMS

    def adds(self, summed: Summed) -> bool:
        """Numbers that are summed now: whether they are kept until the step."""
        if not self.takes_sums:
            return False
        told = replace(summed, model=self._model, sync=self._sync)
        self._sums.append((told, self._sizes_now()))
        return True

    def facts(self, forwards: int) -> Iterator[Rescaled | Summed]:
        """The step begins, on the gradients of so many forwards."""
        now = self._sizes_now()
        for summed, then in self._sums:
            yield replace(summed, ratios=_ratios(then, now))
        ratios = _ratios(self._sizes, now)
        if ratios:
            yield Rescaled(self._model, self._sync, forwards, ratios)

    def _sizes_now(self) -> tuple[float, ...]:
        """0 where one is not to be had."""
        gradients: list[tuple[int, torch.Tensor | None]]
        gradients = [(place, getattr(tensor(), "grad", None))
                     for place, tensor in enumerate(self._tensors)]  # fmt: skip
        found = checksums.digests(gradients, self._sync)
        sizes = dict(zip(found.tensors, found.sizes, strict=True))
        return tuple(sizes.get(place) or 0.0 for place in range(len(self._tensors)))


def _ratios(before: Sequence[float], now: Sequence[float]) -> tuple[float, ...]:
    return tuple(b / a for a, b in zip(before, now, strict=True) if a and b)
