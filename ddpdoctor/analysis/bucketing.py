"""Which buckets DDP would make of a model's parameters."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.replicas import ModelGroup
from ddpdoctor.modelevents import WatchedTensor

Floats = npt.NDArray[np.float64]

CAPS_MB: Final = (1, 5, 10, 25, 50, 100, 200)  # 25 is DDP's own
DEFAULT_CAP_MB: Final = 25
FIRST_BUCKET_BYTES: Final = 1024 * 1024  # DDP's own, where no cap is given
_MIB: Final = 1024 * 1024
_PIECE: Final = 256 * 1024  # of gradients whose parameters are not known
_BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def parameter_bytes(models: tuple[ModelGroup, ...], total: float) -> Floats:
    """In the order of their gradients, the model's last first; even pieces where not known."""
    for group in models:
        reduced = [each for each in group.info.parameters if each.reduced]
        sizes = np.array([nbytes_of(each) for each in reversed(reduced)], np.float64)
        if len(sizes) and abs(sizes.sum() - total) < 1:
            return sizes
    pieces = max(1, round(total / _PIECE))
    return np.full(pieces, total / pieces)


def nbytes_of(tensor: WatchedTensor) -> int:
    elements = 1
    for extent in tensor.shape.split("x"):
        elements *= int(extent) if extent.isdecimal() else 1
    return elements * _BYTES.get(tensor.dtype.removeprefix("torch."), 4)


def bucket_sizes(parameters: Floats, total: float, cap_mb: float) -> Floats:
    """A bucket is closed by the gradient that brings it to its cap; in order of launch."""
    limit = cap_mb * _MIB
    first = FIRST_BUCKET_BYTES if cap_mb == DEFAULT_CAP_MB else limit
    sizes: list[float] = []
    filled = 0.0
    for nbytes in parameters:
        filled += float(nbytes)
        if filled >= (limit if sizes else first):
            sizes.append(filled)
            filled = 0.0
    if filled > 0:
        sizes.append(filled)
    made = np.array(sizes, np.float64)
    return np.asarray(made * (total / made.sum()), np.float64)
