"""What a loss is the mean of, and what multiplies it: from autograd's graph, before a backward.

Only nodes near the root are looked at, and only numbers that they hold anyway. What hooks for saved
tensors keep (checkpointing, offloading) is not asked for: that would compute it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import torch

from ddpdoctor.events import Site
from ddpdoctor.modelevents import LossTerm
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.modelshape import text

_MOST_NODES: Final = 64
_MOST_TERMS: Final = 8
_MOST_FACTORS: Final = 16
_THROUGH: Final = (  # nodes that hand the loss on as it is
    "_DDPSink", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy", "Clone",
    "Alias",
)  # fmt: skip
_MEAN, _SUM = 1, 2  # of torch.nn._reduction
_LARGEST: Final = 1e300


@dataclass(frozen=True)
class LossSeen:
    """The terms of a loss, and where the script multiplies one by the number of ranks."""

    terms: tuple[LossTerm, ...]
    site: Site | None = None


def loss_terms(roots: Sequence[torch.Tensor], gradients: Any) -> tuple[LossTerm, ...]:
    """Terms of what `torch.autograd.backward(roots, gradients)` is called for."""
    waiting = [(root.grad_fn, _of_gradient(gradients, place)) for place, root in enumerate(roots)]
    terms: list[LossTerm] = []
    for _ in range(_MOST_NODES):
        if not waiting or len(terms) == _MOST_TERMS:
            break
        node, factors = waiting.pop(0)
        if node is None:
            continue
        below = _below(node, factors)
        if below is None or any(len(own) > _MOST_FACTORS for _, own in below):
            terms.append(_term(node, factors))
        else:
            waiting += below
    return tuple(terms)


Factors = tuple[float, ...]


def _below(node: Any, factors: Factors) -> list[tuple[Any, Factors]] | None:
    """The nodes of which this one makes a weighted sum; None where it makes something else."""
    name = _operation(node)
    inputs = [edge for edge, _ in node.next_functions]
    live = [edge for edge in inputs if edge is not None]
    if name in _THROUGH and len(live) == 1:
        return [(live[0], factors)]
    if name == "Neg":
        return [(live[0], (*factors, -1.0))]
    if name == "Add" and live:
        return [(edge, factors) for edge in live]
    if name in ("Mul", "Div") and len(live) == 1 and (name == "Mul" or inputs[0] is not None):
        number = private.saved_number(node, "other" if inputs[0] is not None else "self")
        if number is not None and number != 0 and isfinite(number):
            return [(live[0], (*factors, number if name == "Mul" else 1 / number))]
    return None


def _term(node: Any, factors: Factors) -> LossTerm:
    reduction = {"Mean": _MEAN, "Sum": _SUM}.get(_operation(node))
    if reduction is None:
        reduction = getattr(node, "_saved_reduction", None)
    divided_by = 1.0 if reduction == _SUM else private.averaged_over(node) if reduction else None
    if divided_by is not None and not 0 < divided_by < _LARGEST:
        divided_by = None
    bounded = tuple(factor for factor in factors if abs(factor) < _LARGEST)
    return LossTerm(text(node.name()), bounded, divided_by, reduction == _MEAN)


def _operation(node: Any) -> str:
    """Such as `Mul` of `MulBackward0`."""
    return str(node.name()).removeprefix("torch::autograd::").partition("Backward")[0]


def _of_gradient(gradients: Any, place: int) -> Factors:
    """`backward(gradient)` multiplies, too."""
    if isinstance(gradients, (list, tuple)):
        gradients = gradients[place] if place < len(gradients) else None
    if isinstance(gradients, torch.Tensor) and gradients.is_cpu and gradients.numel() == 1:
        value = float(gradients.detach())
        return (value,) if value not in (0.0, 1.0) and isfinite(value) else ()
    return ()
