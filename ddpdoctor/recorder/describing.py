"""What a DataLoader says of itself: sampler, lengths, and what its dataset holds.

Only attributes are read and lengths asked for; no sample is loaded.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from ddpdoctor.events import Held, LoaderInfo, Site
from ddpdoctor.recorder.guard import none_if_it_fails

UNNUMBERED: Final = -1
_MOST_COUNT: Final = 2**53  # as the reader has it; larger lengths are jokes, such as sys.maxsize
_MOST_INT: Final = 2**63 - 1
_HELD_LOOKED_AT: Final = 64  # items of each list of a dataset, evenly spread over it
_HELD_SUMMED: Final = 20_000  # items of a list that are all looked at, which takes some 20 ms
_HELD_LISTS: Final = 8
_HELD_DEPTH: Final = 3  # datasets around datasets, as Subset is
_HELD_CHARACTERS: Final = 200
_HELD_ELEMENTS: Final = 64
_SHUFFLES: Final = {RandomSampler: True, SequentialSampler: False}


def describe(loader: DataLoader[Any], site: Site | None, *, joined: bool) -> LoaderInfo:
    sampler = index_sampler(loader)
    replicas, rank = _whole(sampler, "num_replicas"), _whole(sampler, "rank")
    distributed = replicas is not None and rank is not None
    shuffle = none_if_it_fails(getattr, sampler, "shuffle", _SHUFFLES.get(type(sampler)))
    drops = none_if_it_fails(getattr, sampler, "drop_last", None)
    dataset_length = count(none_if_it_fails(len, loader.dataset))
    iterable = isinstance(loader.dataset, IterableDataset)
    return LoaderInfo(
        UNNUMBERED,
        type(loader.dataset).__name__,
        dataset_length,
        type(sampler).__name__,
        replicas if distributed else None,
        rank if distributed else None,
        none_if_it_fails(_draws_with_replacement, sampler) or False,
        loader.batch_size,
        bool(loader.drop_last),
        loader.num_workers,
        site,
        length=_batches(loader, dataset_length, iterable=iterable),
        iterable=iterable,
        shuffle=shuffle if isinstance(shuffle, bool) else None,
        seed=_whole(sampler, "seed"),
        sampler_drop_last=drops if isinstance(drops, bool) and distributed else None,
        joined=joined,
    )


def index_sampler(loader: DataLoader[Any]) -> Any:
    """What draws single indices: the sampler within the batch sampler, if there is one."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    inner = getattr(batch_sampler, "sampler", None)
    return next(one for one in (inner, batch_sampler, loader.sampler) if one is not None)


def sampler_epoch(loader: DataLoader[Any]) -> int | None:
    return _whole(index_sampler(loader), "epoch")


def count(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and 0 <= value <= _MOST_COUNT else None


def _batches(loader: DataLoader[Any], samples: int | None, *, iterable: bool) -> int | None:
    """`len(loader)`. Of a stream it is computed here: asking it would make torch warn later."""
    if not iterable:
        return count(none_if_it_fails(len, loader))
    if samples is None or loader.batch_size is None:
        return samples
    return samples // loader.batch_size if loader.drop_last else -(-samples // loader.batch_size)


def _whole(sampler: Any, name: str) -> int | None:
    value = none_if_it_fails(getattr, sampler, name, None)
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return None
    return int(value) if -_MOST_INT <= value <= _MOST_INT else None


def _draws_with_replacement(sampler: Any) -> bool:
    return bool(getattr(sampler, "replacement", False))


def holdings(dataset: Any) -> dict[str, Held]:
    """Hashes of each list in which a dataset holds an item a sample, by name of the attribute.

    Ranks that were given the same dataset in the same order have equal ones. Paths enter without
    their folder, which may well differ between hosts.
    """
    return none_if_it_fails(dict, _holdings(dataset, "", _HELD_DEPTH)) or {}


def _holdings(dataset: Any, prefix: str, depth: int) -> Iterator[tuple[str, Held]]:
    length = none_if_it_fails(len, dataset)
    attributes = vars(dataset) if hasattr(dataset, "__dict__") else {}
    found = 0
    for name, value in list(attributes.items()):
        if name == "dataset" and depth > 1:
            yield from _holdings(value, f"{prefix}dataset.", depth - 1)
        elif length and found < _HELD_LISTS:
            held = none_if_it_fails(_held, value, length)
            if held is not None:
                found += 1
                yield prefix + str(name)[:_HELD_CHARACTERS], held


def _held(value: Any, length: int) -> Held | None:
    if isinstance(value, tuple) and value and all(isinstance(v, torch.Tensor) for v in value):
        value = value[0]  # as TensorDataset holds them
    on_host = type(value) is torch.Tensor and value.device.type == "cpu"
    known = isinstance(value, (list, tuple)) or type(value) is np.ndarray  # no file behind it
    if not (known or on_host) or len(value) != length:
        return None
    hashed = 0
    for position in np.linspace(0, length - 1, min(length, _HELD_LOOKED_AT)).astype(int).tolist():
        item = _bytes_of(value[position])
        if item is None:
            return None
        hashed = zlib.crc32(item, hashed)
    if length > _HELD_SUMMED:
        return Held(hashed, None)
    items = [_bytes_of(item) for item in (value.numpy() if on_host else value)]
    if None in items:
        return None
    return Held(hashed, sum(zlib.crc32(item) for item in items if item is not None))


def _bytes_of(item: Any, depth: int = 2) -> bytes | None:
    """None for objects whose text may differ from process to process, and for what changes."""
    if isinstance(item, str):
        return item.rpartition("/")[2][-_HELD_CHARACTERS:].encode(errors="replace")
    if isinstance(item, (bytes, int, float)):
        return repr(item)[:_HELD_CHARACTERS].encode()
    if isinstance(item, (np.ndarray, np.generic)) and item.dtype != object:
        return np.asarray(item).ravel()[:_HELD_ELEMENTS].tobytes()
    if isinstance(item, torch.Tensor) and item.device.type == "cpu":
        flat = item.detach().reshape(-1)[:_HELD_ELEMENTS].contiguous()
        return bytes(flat.view(torch.uint8).numpy().tobytes())
    if isinstance(item, (tuple, list)) and depth:
        parts = [_bytes_of(part, depth - 1) for part in item[:_HELD_LISTS]]
        return None if None in parts else b"\0".join(part for part in parts if part is not None)
    return None
