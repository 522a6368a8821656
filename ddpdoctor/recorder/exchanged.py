"""What the script's own collectives exchange, at some of the calls of each line.

Sums of a few numbers, and gathers of what requires a gradient. Numbers on a GPU are not read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from types import FrameType
from typing import Any, Final

from ddpdoctor.modelevents import MOST_SUMMED, Gathered, ModelFact, Summed
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder import checksums
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.modelfacts import Models
from ddpdoctor.recorder.modelshape import text

_MOST_LINES: Final = 64  # whose calls are counted
_LARGEST: Final = 1e300
_LEAST_DIMENSIONS: Final = 2  # of what is gathered: a batch of features, and no single loss


@dataclass(slots=True)
class _Line:
    """Calls of one line of the script."""

    calls: int = 0
    awaited: int = 0  # address of the tensor that the last look saw

    def counts(self) -> bool:
        """Whether this call is to be looked at: at every power of two."""
        self.calls += 1
        return self.calls & (self.calls - 1) == 0


class Exchanged:
    """Looks at calls of the training thread before they are issued."""

    def __init__(
        self, models: Models, write: Callable[[ModelFact], None], sites: CallSites
    ) -> None:
        self._models = models
        self._write = write
        self._sites = sites
        self._lines: dict[int, _Line] = {}

    def _new_line(self, site: int) -> _Line | None:
        if len(self._lines) == _MOST_LINES:
            return None
        return self._lines.setdefault(site, _Line())

    def sums(self, tensors: Any, group: Any, caller: FrameType | None, site: int, seq: int) -> None:
        """An all-reduce on the host of few bytes; `group` as the operation is given it."""
        line = self._lines.get(site) or self._new_line(site)
        if line is None or len(tensors) != 1 or not checksums.is_readable(tensors[0]):
            return
        (tensor,) = tensors
        looks = line.counts()
        again = not looks and line.awaited != 0 and line.awaited == tensor.data_ptr()
        in_step = self._models.steps_next
        if not (looks or again or in_step) or not private.is_sum(caller):
            return
        if looks or again:
            line.awaited = tensor.data_ptr() if looks else 0
        if tensor.numel() > MOST_SUMMED or tensor.is_complex():
            return
        values = tuple(map(_bounded, tensor.detach().reshape(-1).tolist()))
        name = text(private.group_key(private.unbox_group(group)))
        summed = Summed(name, seq, line.calls, again, values, self._sites.site(caller))
        kept = in_step and self._models.sum_in_step(summed)
        if (looks or again) and not kept:
            self._write(summed)

    def gathers(self, inputs: Any, caller: FrameType | None, site: int) -> None:
        """An all-gather where gradients are on. Those that carry one switch them off within."""
        tensors = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        wanted = [t for t in tensors if t.requires_grad and t.dim() >= _LEAST_DIMENSIONS]
        if not wanted or not self._models.awaits_backward:
            return
        line = self._lines.get(site) or self._new_line(site)
        if line is not None and line.counts():
            shape = text("x".join(map(str, wanted[0].shape)))
            where = self._sites.site(caller)
            self._write(Gathered(line.calls, self._models.reductions, shape, where))


def _bounded(value: float) -> float | None:
    return float(value) if isfinite(value) and abs(value) < _LARGEST else None
