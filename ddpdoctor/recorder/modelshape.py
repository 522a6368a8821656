"""What a wrapped model and an optimizer are made of: names, shapes, types, settings. No values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddpdoctor.modelevents import (
    MOST_NAME,
    MOST_WATCHED,
    ModelInfo,
    OptimizerInfo,
    WatchedTensor,
)
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder import checksums

_ARGUMENTS: Final = (
    "find_unused_parameters", "static_graph", "broadcast_buffers", "gradient_as_bucket_view",
    "bucket_bytes_cap", "mixed_precision",
)  # fmt: skip
_MOST_GROUPS: Final = 8  # of an optimizer whose settings are kept
_DIGEST_BYTES: Final = 7  # fits what a digest may be


@dataclass(frozen=True)
class Watched:
    """A parameter or buffer that is looked at, and where the model keeps it."""

    told: WatchedTensor
    tensor: torch.Tensor
    owner: nn.Module | None
    attribute: str
    place: int  # among those that DDP reduces; -1 for the others

    def current(self) -> torch.Tensor | None:
        """What the model has there now."""
        if self.owner is None:
            return self.tensor
        found = getattr(self.owner, self.attribute, None)
        return found if isinstance(found, torch.Tensor) else None


@dataclass(frozen=True)
class Shape:
    """A model's facts, and the tensors behind the watched ones, in the same order."""

    info: ModelInfo
    parameters: tuple[Watched, ...]
    buffers: tuple[Watched, ...]
    reduced_count: int
    reduced_names: tuple[str, ...]  # of the first MOST_WATCHED that DDP reduces, in its order


def shape_of(model: DistributedDataParallel, number: int) -> Shape:
    """Walks all tensors of the model once."""
    ignored = set(getattr(model, "parameters_to_ignore", ()))
    parameters = list(_walk(model.module, parameters=True))
    buffers = list(_walk(model.module, parameters=False))
    reduced = [p.requires_grad and name not in ignored for name, _, _, p in parameters]
    places = _places(reduced)
    watched = _watched(parameters, places)
    watched_buffers = _watched(buffers, [-1] * len(buffers))
    readable = all(checksums.is_readable(w.tensor) for w in (*watched[:1], *watched_buffers[:1]))
    info = ModelInfo(
        model=number,
        name=text(type(model.module).__name__),
        group=text(private.group_key(model.process_group)),
        parameter_count=len(parameters),
        buffer_count=len(buffers),
        elements=sum(_numel(p) for *_, p in parameters),
        parameter_digest=_digest(parameters),
        buffer_digest=_digest(buffers),
        arguments=_arguments(model),
        parameters=tuple(w.told for w in watched),
        buffers=tuple(w.told for w in watched_buffers),
        measured=readable,
    )
    names = [row[0] for row, is_reduced in zip(parameters, reduced, strict=True) if is_reduced]
    return Shape(info, watched, watched_buffers, len(names), tuple(map(text, names[:MOST_WATCHED])))


def shape_of_rest(tensors: Sequence[torch.Tensor], number: int, group: str) -> Shape:
    """Parameters of an optimizer that belong to no wrapped model, as if they were a model."""
    rows = [(f"parameter {index} of the optimizer", None, "", tensor)
            for index, tensor in enumerate(tensors)]  # fmt: skip
    watched = _watched(rows, [-1] * len(rows))
    info = ModelInfo(
        model=number,
        name="",
        group=group,
        parameter_count=len(rows),
        buffer_count=0,
        elements=sum(map(_numel, tensors)),
        parameter_digest=_digest(rows),
        buffer_digest=0,
        arguments={},
        parameters=tuple(w.told for w in watched),
        buffers=(),
        measured=all(checksums.is_readable(w.tensor) for w in watched[:1]),
    )
    return Shape(info, watched, (), 0, ())


def optimizer_info(
    optimizer: Optimizer, number: int, models: tuple[int, ...], outside: int
) -> OptimizerInfo:
    settings: dict[str, str] = {}
    for index, group in enumerate(optimizer.param_groups[:_MOST_GROUPS]):
        prefix = f"group {index} " if len(optimizer.param_groups) > 1 else ""
        for key, value in group.items():
            if isinstance(value, (bool, int, float, str, tuple, type(None))) and len(settings) < 64:
                settings[text(f"{prefix}{key}")] = text(str(value))
    return OptimizerInfo(number, text(type(optimizer).__name__), models, settings, outside)


def rates(optimizer: Optimizer) -> tuple[float, ...]:
    """Learning rates of its groups; those that a device holds are left out."""
    found = []
    for group in optimizer.param_groups[:_MOST_GROUPS]:
        rate = group.get("lr")
        if isinstance(rate, (int, float)) or (
            isinstance(rate, torch.Tensor) and rate.is_cpu and rate.numel() == 1
        ):
            found.append(float(rate))
    return tuple(found)


def text(name: str) -> str:
    """Bounded, and without what is no text."""
    return name[:MOST_NAME].encode(errors="replace").decode()


def first_tensor(inputs: Any, kwargs: Any) -> torch.Tensor | None:
    """The first tensor with dimensions that a model was given."""
    for given in (*inputs, *kwargs.values()):
        if isinstance(given, torch.Tensor) and given.dim():
            return given
        if isinstance(given, (list, tuple, dict)):
            parts = given.values() if isinstance(given, dict) else given
            for part in parts:
                if isinstance(part, torch.Tensor) and part.dim():
                    return part
    return None


Row = tuple[str, "nn.Module | None", str, torch.Tensor]


def _walk(module: nn.Module, *, parameters: bool) -> Iterator[Row]:
    """Name, owner, attribute and tensor of each, those that are shared once, in DDP's order."""
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        own = owner.named_parameters if parameters else owner.named_buffers
        for attribute, tensor in own(recurse=False):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield (f"{prefix}.{attribute}" if prefix else attribute), owner, attribute, tensor


def _places(reduced: list[bool]) -> list[int]:
    places, following = [], 0
    for is_reduced in reduced:
        places.append(following if is_reduced else -1)
        following += is_reduced
    return places


def _watched(rows: Sequence[Row], places: Sequence[int]) -> tuple[Watched, ...]:
    """All of them, or as many as may be watched, evenly spread."""
    chosen = range(len(rows))
    if len(rows) > MOST_WATCHED:
        chosen = range(0, len(rows), -(-len(rows) // MOST_WATCHED))
    found = []
    for index in chosen:
        name, owner, attribute, tensor = rows[index]
        told = WatchedTensor(
            index,
            text(name),
            _shape(tensor),
            str(tensor.dtype).removeprefix("torch."),
            tensor.requires_grad,
            places[index] >= 0,
        )
        found.append(Watched(told, tensor, owner, attribute, places[index]))
    return tuple(found)


def _digest(rows: Sequence[Row]) -> int:
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for name, _, _, tensor in rows:
        line = f"{name}\0{_shape(tensor)}\0{tensor.dtype}\0{tensor.requires_grad}\n"
        hashed.update(line.encode(errors="replace"))
    return int.from_bytes(hashed.digest(), "little")


def _shape(tensor: torch.Tensor) -> str:
    """As `64x3x7x7`; empty for a single number, `lazy` where there is none yet."""
    if nn.parameter.is_lazy(tensor):
        return "lazy"
    return text("x".join(map(str, tensor.shape)))


def _numel(tensor: torch.Tensor) -> int:
    return 0 if nn.parameter.is_lazy(tensor) else tensor.numel()


def _arguments(model: DistributedDataParallel) -> dict[str, str]:
    told = {name: text(str(getattr(model, name))) for name in _ARGUMENTS if hasattr(model, name)}
    devices: Any = model.device_ids
    told["device_ids"] = "none" if devices is None else str(len(devices))  # which ones may differ
    hooks = private.communication_hooks(model)
    if hooks:
        told["communication hook"] = text(", ".join(hooks))
    return told
