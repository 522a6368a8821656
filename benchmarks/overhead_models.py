"""The models that the overhead is measured on: from a step of 50 ms and more to a tiny one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.utils.data import TensorDataset

_EXAMPLES: Final = 64


@dataclass(frozen=True)
class Workload:
    """A model with its data, and how long a block of measured steps is."""

    make: Callable[[], nn.Module]
    dataset: Callable[[], TensorDataset]
    batch: int
    steps: int
    bucket_cap_mb: float = 25.0


def _conv_block(inside: int, outside: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride=2, padding=1), nn.GroupNorm(8, outside), nn.ReLU()
    )


def _conv() -> nn.Module:
    """About 25 million parameters, most of them behind the convolutions, as in VGG."""
    widths = (3, 64, 128, 256, 512)
    return nn.Sequential(
        *(_conv_block(a, b) for a, b in itertools.pairwise(widths)),
        nn.Flatten(), nn.Linear(512 * 2 * 2, 8192), nn.ReLU(), nn.Linear(8192, 768), nn.ReLU(),
        nn.Linear(768, 10),
    )  # fmt: skip


class _Transformer(nn.Module):
    """Four encoder layers over 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = self.layers(self.embed(tokens)).mean(dim=1)
        scores: torch.Tensor = self.head(mean)
        return scores


def _mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def _images() -> TensorDataset:
    return TensorDataset(torch.randn(_EXAMPLES, 3, 32, 32), _labels())


def _tokens() -> TensorDataset:
    return TensorDataset(torch.randint(1000, (_EXAMPLES, 64)), _labels())


def _vectors() -> TensorDataset:
    return TensorDataset(torch.randn(_EXAMPLES, 64), _labels())


def _labels() -> torch.Tensor:
    return torch.randint(10, (_EXAMPLES,))


WORKLOADS: Final = {
    "conv": Workload(_conv, _images, batch=4, steps=12),
    "transformer": Workload(_Transformer, _tokens, batch=8, steps=12, bucket_cap_mb=5.0),
    "mlp": Workload(_mlp, _vectors, batch=8, steps=200, bucket_cap_mb=0.02),
}
