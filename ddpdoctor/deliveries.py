"""Facts on what the loaders of a rank delivered, beyond its indices. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from ddpdoctor.events import Count, Int64, LoaderInfo


@dataclass(frozen=True)
class LoaderEpoch:
    """One pass over a loader that feeds the training, as far as it had come when it was written.

    `order` holds a hash of all indices so far after 1, 2, 4, 8, … batches, so that passes of
    different length can be compared. `elements` are those of the first tensor, batch by batch from
    the first; a single number where all have as many.
    """

    loader: Count
    epoch: Count
    batches: Count
    samples: Count | None
    ended: bool  # the loader had no more to give
    first_sync: Count  # synchronised backwards before it began
    last_sync: Count  # and when it ended, or this was written
    sampler_epoch: Int64 | None  # what the sampler was told by `set_epoch`
    base_seed: Int64 | None  # that the random numbers of its workers come from
    first_rows: Count | None  # samples of the first batch
    last_rows: Count | None
    least_rows: Count | None
    most_rows: Count | None
    shape: tuple[Count, ...]  # of the first tensor of the first batch
    elements: tuple[Count, ...]
    order: tuple[Count, ...]
    first_indices: tuple[Int64, ...]


@dataclass(frozen=True)
class StreamedSamples:
    """What the first batches of a stream held: hashes of its samples, told by their content.

    Of more than a bounded number the lowest are kept, all below `limit`, so that ranks keep the
    same of what they have in common. `batches` are hashes of whole batches, in their order.
    """

    loader: Count
    epoch: Count
    seen: Count
    distinct: Count
    limit: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    samples: tuple[Int64, ...]
    batches: tuple[Count, ...]


@dataclass(frozen=True)
class Evaluated:
    """A loader that was gone through to its end without gradients, the first time."""

    loader: LoaderInfo  # numbered among these
    samples: Count  # that this rank drew


RANDOM_GENERATORS: Final = ("torch", "numpy", "python")  # in the order of the hashes
Hashes = tuple[Count | None, Count | None, Count | None]


@dataclass(frozen=True)
class RandomStates:
    """Hashes of the process's random states around one batch. Nothing is drawn for them."""

    loader: Count
    epoch: Count
    batch: Count  # from 1
    asked: Hashes  # before it was loaded
    delivered: Hashes
    trained: Hashes  # when the next one was asked for
