"""Which iterations of a loader feed the training, told from what follows their batches.

The grad mode in which a batch is drawn does not tell: validation is often looped over outside
`no_grad`. What follows does. An iteration feeds the training once a backward came while it had
batches to give; its later batches then do too, so that batches drawn ahead or in groups
(gradient accumulation) count. One that ended before a backward came was an evaluation, and so
was a batch that a forward without gradients came for and no backward.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ddpdoctor.events import LoaderInfo
from ddpdoctor.recorder.drawn import DrawnEpoch, Indices
from ddpdoctor.recorder.passes import Pass
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.streamed import Stream

_SPANS_KEPT: Final = 4096  # input spans that wait for the judgement; the ring has no more


@dataclass(eq=False)
class Iteration:
    """One pass over a loader, from `iter` to its end."""

    loader: LoaderInfo
    iterator: weakref.ref[Any]
    drawn: DrawnEpoch
    passing: Pass
    stream: Stream | None = None  # where the samples have no indices
    left_sync: int | None = None  # synchronised backwards when the next pass began
    number: int | None = None  # of the loader, once the iteration feeds the training
    epoch: int = 0
    trains: bool = False
    ended: bool = False
    batches: int = 0  # delivered and not judged yet
    evaluated: int | None = 0  # samples drawn without gradients; None: not known of all
    spans: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_SPANS_KEPT))

    def evaluates(self, indices: Indices | None) -> None:
        """A batch that was drawn without gradients."""
        if self.evaluated is None or indices is None:
            self.evaluated = None
        else:
            self.evaluated += len(indices)

    @property
    def over(self) -> bool:
        return self.ended or self.iterator() is None


class Feeding:
    """Judges iterations; calls `begins_training(iteration)` once for each that trains."""

    def __init__(self, phases: Phases, begins_training: Callable[[Iteration], None]) -> None:
        self._phases = phases
        self._begins_training = begins_training
        self._waiting: dict[Iteration, None] = {}  # in the order of their first batch
        self._last: Iteration | None = None
        self._backwards = phases.backwards
        self._evaluations = phases.evaluations

    def took(self, iteration: Iteration, span: int, duration_ns: int, *, batch: bool) -> None:
        """The training thread waited for this iteration, and got a batch or did not."""
        self._waiting[iteration] = None
        self._last = iteration
        iteration.batches += batch
        if span:
            iteration.spans.append((span, duration_ns))

    def took_for_evaluation(self) -> None:
        """The training thread drew without gradients; a forward that follows is for that."""
        self._last = None

    def settle(self) -> None:
        """Judge what was delivered by what came after it. Called before more is drawn."""
        backwards = self._phases.backwards - self._backwards
        evaluated = self._phases.evaluations != self._evaluations
        self._backwards, self._evaluations = self._phases.backwards, self._phases.evaluations
        for iteration in tuple(self._waiting):
            if backwards and iteration.batches:
                self._judge(iteration, trains=self._was_trained_on(iteration, backwards))
            elif evaluated and iteration is self._last:
                self._judge(iteration, trains=False)
            elif iteration.over:
                self._judge(iteration, trains=iteration.trains)

    def finish(self) -> None:
        """Nothing more comes."""
        self.settle()
        for iteration in tuple(self._waiting):
            self._judge(iteration, trains=iteration.trains)

    def _was_trained_on(self, iteration: Iteration, backwards: int) -> bool:
        """Several batches, then input from another loader: that loop was over before."""
        if iteration.trains or iteration.batches == 1:
            return True
        if iteration.over:  # an epoch may be drawn in one go, as for gradient accumulation
            return iteration.batches == backwards
        return iteration is self._last

    def _judge(self, iteration: Iteration, *, trains: bool) -> None:
        del self._waiting[iteration]
        if not trains:
            for span, duration_ns in iteration.spans:
                self._phases.was_evaluation(span, duration_ns)
        elif not iteration.trains:
            iteration.trains = True
            self._begins_training(iteration)
        iteration.spans.clear()
        iteration.batches = 0
