"""Which bucket of which model an all-reduce of the reducer is, and whether its end is stamped."""

from __future__ import annotations

from typing import Final

# A completion callback takes the interpreter's lock on a thread of the backend, in the middle of
# the backward: half of what a bucket costs. A link is known well enough from these steps.
STEPS_ALL_TIMED: Final = 64  # synchronised steps from the first one on
TIMED_EVERY: Final = 4  # steps, after those; with more buckets than the next, the fewer
BUCKETS_TIMED: Final = 10


class Buckets:
    """What the running backward has still to reduce, by model, in DDP's launch order.

    All ranks stamp the completions of the same steps, since they count synchronised steps alike.
    """

    def __init__(self) -> None:
        self._models: list[tuple[tuple[int, ...], int]] = []  # sizes, and how many were taken
        self._sync = 0
        self.site = 0  # of the backward
        self.timed = True  # whether the completions of this backward are stamped

    def begin(self, site: int, sync: int) -> None:
        """A backward begins, the synchronised step `sync` of this rank."""
        self._models.clear()
        self.site, self._sync, self.timed = site, sync, True

    def expect(self, sizes: tuple[int, ...]) -> None:
        """The backward has reached a model with buckets of these sizes."""
        every = TIMED_EVERY * -(-len(sizes) // BUCKETS_TIMED) if sizes else 1
        if not self._models:
            self.timed = self._sync < STEPS_ALL_TIMED or self._sync % every == 0
        self._models.append((sizes, 0))

    def take(self, nbytes: int) -> int:
        """Index of the bucket of this size if it is the next one of one model alone, else -1."""
        fits = [
            place
            for place, (sizes, taken) in enumerate(self._models)
            if taken < len(sizes) and sizes[taken] == nbytes
        ]
        if not fits:
            return -1
        sizes, taken = self._models[fits[0]]
        self._models[fits[0]] = (sizes, taken + 1)
        return taken if len(fits) == 1 else -1
