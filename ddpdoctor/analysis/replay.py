"""Plays recorded steps again through their collectives, with other buckets or another link.

Every rank goes through its own work as recorded. At a call that blocks it stands until all have
come and the call has taken its time; its buckets go to the link when all ranks have them, at most
`at_once` together, which share the bandwidth; and the step ends when work and buckets have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_TINY: Final = 1e-9  # ms, or bytes: what is left of a message that has arrived
AT_ONCE: Final = {"gloo": 2}  # collectives of one group; others, as NCCL, one after the other


@dataclass(frozen=True)
class Link:
    """What a message takes: `alpha_ms`, then its bytes at the bandwidth, shared by `at_once`."""

    alpha_ms: float
    bytes_per_ms: float
    at_once: int

    def faster(self, factor: float) -> Link:
        return replace(self, bytes_per_ms=self.bytes_per_ms * factor)


@dataclass(frozen=True)
class Steps:
    """S recorded steps of R ranks, alike in their K calls. Milliseconds.

    `own_ms[:, :, k]` is a rank's own work before call k, and the last what follows them up to the
    end of its backward. A step begins when the last rank had left the backward before it, and
    ends likewise; `before_ms` (at most 0) says how much earlier each rank began.
    """

    before_ms: Floats  # S, R
    own_ms: Floats  # S, R, K + 1
    nbytes: Floats  # K
    blocks: Bools  # K: the rank stands in it; else it is a bucket
    taken_ms: Floats  # S, K: of those that block, from the last arrival to the last completion
    early_ms: Floats  # S, R, K: how much earlier each rank's own completion was
    after_ms: Floats  # S: from the last bucket and all work to the end
    recorded_ms: Floats  # S
    call: Ints  # K: which of the calls of the recorded step each is
    backward_ms: Floats  # S, R: from the beginning of backward to the first bucket

    @property
    def count(self) -> int:
        return len(self.recorded_ms)

    @property
    def buckets(self) -> Ints:
        return np.flatnonzero(~self.blocks)

    def without(self, dropped: Bools) -> Steps:
        """As if these calls had not been made: the work around them follows on directly."""
        kept = np.flatnonzero(~dropped)
        # each kept call takes over the work before the dropped ones in front of it
        total = np.cumsum(self.own_ms, axis=2)[:, :, np.append(kept, len(dropped))]
        return replace(
            self,
            own_ms=np.diff(total, axis=2, prepend=0.0),
            nbytes=self.nbytes[kept],
            blocks=self.blocks[kept],
            taken_ms=self.taken_ms[:, kept],
            early_ms=self.early_ms[:, :, kept],
            call=self.call[kept],
        )

    def rebucketed(self, sizes: Floats) -> Steps:
        """With buckets of these sizes, which add up to those recorded; none that blocks between.

        A gradient between two recorded buckets is taken to be ready in proportion to its bytes.
        """
        first = int(self.buckets[0])
        ready = np.cumsum(self.own_ms, axis=2)
        begin = np.maximum(ready[:, :, first] - self.backward_ms, 0.0)
        known = np.concatenate([begin[:, :, None], ready[:, :, first:-1]], axis=2)
        bounds = np.concatenate([[0.0], np.cumsum(self.nbytes[first:])])
        wanted = _between(bounds, known, np.cumsum(sizes))
        head = ready[:, :, :first]
        total = np.concatenate([head, wanted, ready[:, :, -1:]], axis=2)
        return replace(
            self,
            own_ms=np.diff(total, axis=2, prepend=0.0),
            nbytes=np.concatenate([self.nbytes[:first], sizes]),
            blocks=np.concatenate([self.blocks[:first], np.zeros(len(sizes), np.bool_)]),
            taken_ms=_padded(self.taken_ms[:, :first], len(sizes)),
            early_ms=_padded(self.early_ms[:, :, :first], len(sizes)),
            call=np.concatenate([self.call[:first], np.full(len(sizes), -1)]),
        )

    def scaled(self, factor: float) -> Steps:
        """With buckets of so many times the bytes."""
        return replace(self, nbytes=np.where(self.blocks, self.nbytes, self.nbytes * factor))


def _padded(values: Floats, more: int) -> Floats:
    return np.concatenate([values, np.zeros((*values.shape[:-1], more))], axis=-1)


def _between(bounds: Floats, known: Floats, wanted: Floats) -> Floats:
    """Linear interpolation along the last axis of `known`, whose places are `bounds`."""
    index = np.clip(np.searchsorted(bounds, wanted, "left"), 1, len(bounds) - 1)
    length = np.maximum(bounds[index] - bounds[index - 1], _TINY)
    share = np.clip((wanted - bounds[index - 1]) / length, 0.0, 1.0)
    return known[..., index - 1] * (1 - share) + known[..., index] * share


@dataclass(frozen=True)
class Replayed:
    """Milliseconds of each step; `ready_ms` and `done_ms` are of its buckets."""

    step_ms: Floats  # S
    ready_ms: Floats  # S, buckets
    done_ms: Floats


def replay(steps: Steps, link: Link) -> Replayed:
    """How long each step takes on this link."""
    clock = steps.before_ms.copy()
    ready: list[Floats] = []
    for k, blocks in enumerate(steps.blocks):
        clock = clock + steps.own_ms[:, :, k]
        all_have = clock.max(axis=1)
        if blocks:
            end = all_have + steps.taken_ms[:, k]
            clock = np.maximum(clock, end[:, None] - steps.early_ms[:, :, k])
        else:
            ready.append(all_have)
    end = (clock + steps.own_ms[:, :, -1]).max(axis=1)
    buckets = np.stack(ready, axis=1) if ready else np.empty((steps.count, 0))
    done = transfers(buckets, steps.nbytes[~steps.blocks], link)
    if done.shape[1]:
        end = np.maximum(end, done.max(axis=1))
    return Replayed(end + steps.after_ms, buckets, done)


def transfers(ready_ms: Floats, nbytes: Floats, link: Link) -> Floats:
    """When each message has arrived; they are taken in their order. Shapes (steps, messages)."""
    count = ready_ms.shape[1]
    ready = np.maximum.accumulate(ready_ms, axis=1) if count else ready_ms
    state = _Transfers(ready, np.asarray(nbytes, np.float64), link)
    for _ in range(3 * count):  # each message starts, has its latency behind it, and ends
        if not state.advance():
            break
    return state.done


class _Transfers:
    """Messages under way in all steps side by side: time goes from event to event in each."""

    def __init__(self, ready: Floats, nbytes: Floats, link: Link) -> None:
        steps, count = ready.shape
        self.done = np.zeros((steps, count))
        self._ready = np.concatenate([ready, np.full((steps, 1), np.inf)], axis=1)
        self._nbytes, self._link = np.append(nbytes, 0.0), link
        self._row = np.arange(steps)
        self._next = np.zeros(steps, np.int64)
        self._now = np.zeros(steps)
        slots = (steps, link.at_once)
        self._message = np.full(slots, -1)
        self._latency = np.zeros(slots)
        self._left = np.zeros(slots)

    def advance(self) -> bool:
        """To the next event of each step; False when all has arrived."""
        self._start()
        busy = self._message >= 0
        moving = busy & (self._latency <= _TINY)
        rate = self._link.bytes_per_ms / np.maximum(1, moving.sum(axis=1))
        until = np.where(moving, self._left / rate[:, None], self._latency)
        until = np.where(busy, until, np.inf).min(axis=1)
        free = ~busy.all(axis=1)
        comes = np.where(free, self._ready[self._row, self._next] - self._now, np.inf)
        passed = np.minimum(until, np.maximum(comes, 0.0))
        if not np.isfinite(passed).any():
            return False
        passed = np.where(np.isfinite(passed), passed, 0.0)
        self._now = self._now + passed
        self._latency -= np.where(busy & ~moving, passed[:, None], 0.0)
        self._left -= np.where(moving, passed[:, None] * rate[:, None], 0.0)
        self._finish()
        return True

    def _start(self) -> None:
        for slot in range(self._link.at_once):
            due = self._ready[self._row, self._next] <= self._now + _TINY
            rows = np.flatnonzero((self._message[:, slot] < 0) & due)
            message = self._next[rows]
            self._message[rows, slot] = message
            self._latency[rows, slot] = self._link.alpha_ms
            self._left[rows, slot] = self._nbytes[message]
            self._next[rows] += 1

    def _finish(self) -> None:
        over = (self._message >= 0) & (self._latency <= _TINY) & (self._left <= _TINY * 1e3)
        rows, slots = np.nonzero(over)
        self.done[rows, self._message[rows, slots]] = self._now[rows]
        self._message[rows, slots] = -1
