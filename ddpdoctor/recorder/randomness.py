"""Random states of the process at a few batches, as hashes. Reading a state draws nothing."""

from __future__ import annotations

import random
import zlib
from typing import Final

import numpy as np
import torch

from ddpdoctor.deliveries import Hashes, RandomStates
from ddpdoctor.recorder.feeding import Iteration
from ddpdoctor.recorder.guard import none_if_it_fails

LOOKS_KEPT: Final = 64


class RandomLooks:
    """Looks at batches 2, 4, 8, … of a pass: before loading, after it, and after the training.

    Both of `asked` and `delivered` cost next to nothing for all other batches.
    """

    def __init__(self) -> None:
        self._left = LOOKS_KEPT
        self._due: Iteration | None = None
        self._asked: Hashes | None = None
        self._delivered: Hashes | None = None

    def asked(self, iterator: object) -> RandomStates | None:
        """A batch is asked for. Returns what was seen around the one before, if it was."""
        due = self._due
        if due is None or due.iterator() is not iterator:
            return None
        states = random_states()
        if self._asked is None or self._delivered is None:
            self._asked = states
            return None
        seen = RandomStates(
            due.number or 0, due.epoch, due.passing.batches, self._asked, self._delivered, states
        )
        self.forget()
        if due.number is None:
            return None
        self._left -= 1
        return seen

    def delivered(self, iteration: Iteration) -> None:
        """A batch came; the one after it may be due for a look."""
        if self._due is iteration:
            if self._asked is not None and self._delivered is None:
                self._delivered = random_states()
            return
        batches = iteration.passing.batches
        if batches & (batches + 1) == 0 and self._left and (self._due is None or self._due.over):
            self.forget()
            self._due = iteration

    def forget(self) -> None:
        """Give up the look that is under way."""
        self._due = self._asked = self._delivered = None


def random_states() -> Hashes:
    return (
        none_if_it_fails(_of_torch),
        none_if_it_fails(_of_numpy),
        none_if_it_fails(_of_python),
    )


def _of_torch() -> int:
    return zlib.crc32(torch.get_rng_state().numpy().tobytes())


def _of_numpy() -> int:
    _, keys, position, *_ = np.random.get_state(legacy=True)
    return zlib.crc32(np.asarray(keys).tobytes(), int(position))


def _of_python() -> int:
    _, state, gauss = random.getstate()
    return zlib.crc32(repr(gauss).encode(), zlib.crc32(np.asarray(state, np.uint32).tobytes()))
