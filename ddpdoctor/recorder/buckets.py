"""Which bucket of which model an all-reduce of the reducer is, and whether its end is stamped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# A completion callback takes the interpreter's lock on a thread of the backend, in the middle of
# the backward: half of what a bucket costs. A link is known well enough from these steps.
STEPS_ALL_TIMED: Final = 64  # synchronised steps from the first one on
TIMED_EVERY: Final = 4  # steps, after those; with more buckets than the next, the fewer
BUCKETS_TIMED: Final = 10


@dataclass(slots=True)
class _Expected:
    """Buckets of one model: their sizes, and how many were taken."""

    sizes: tuple[int, ...]
    taken: int = 0


class Buckets:
    """What the running backward has still to reduce, by model, in DDP's launch order.

    All ranks stamp the completions of the same steps, since they count synchronised steps alike.
    """

    def __init__(self) -> None:
        self._models: list[_Expected] = []
        self.site = self.step = self.sync = self.depth = 0  # of the backward
        self.timed = True  # whether the completions of this backward are stamped

    def begin(self, site: int, step: int, sync: int, depth: int) -> None:
        """A backward begins, the synchronised step `sync` of this rank; `depth` is within it."""
        self._models.clear()
        self.site, self.step, self.sync, self.depth = site, step, sync, depth
        self.timed = True

    def expect(self, sizes: tuple[int, ...]) -> None:
        """The backward has reached a model with buckets of these sizes."""
        every = TIMED_EVERY * -(-len(sizes) // BUCKETS_TIMED) if sizes else 1
        if not self._models:
            self.timed = self.sync < STEPS_ALL_TIMED or self.sync % every == 0
        self._models.append(_Expected(sizes))

    def take(self, nbytes: int) -> int:
        """Index of the bucket of this size if it is the next one of one model alone, else -1."""
        bucket, fits = -1, 0
        for model in self._models:
            taken = model.taken
            if taken < len(model.sizes) and model.sizes[taken] == nbytes:
                fits += 1
                if fits == 1:
                    bucket, model.taken = taken, taken + 1
        return bucket if fits == 1 else -1
