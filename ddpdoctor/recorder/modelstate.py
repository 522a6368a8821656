"""What has come of one model so far: counts, and what is held until it can be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ddpdoctor.events import Site
from ddpdoctor.modelevents import NonFinite, Unsynced, UnusedSearch
from ddpdoctor.recorder import modellook
from ddpdoctor.recorder.batchruns import BatchRuns
from ddpdoctor.recorder.lossgraph import LossSeen
from ddpdoctor.recorder.modellook import Schedule, Use
from ddpdoctor.recorder.modelshape import Shape


@dataclass(eq=False)
class Trained:
    """One model and what has come of it so far."""

    shape: Shape
    schedule: Schedule = field(default_factory=Schedule)
    sync: int = 0
    forwards: int = 0
    optimizer_steps: int = 0
    sync_at_step: int = 0
    forwards_at_sync: int = 0
    forwards_at_step: int = 0
    steps_at_sync: int = 0
    rates: tuple[float, ...] = ()
    use: Use | None = None
    output: bool | None = None  # whether the gradient by it is finite
    samples: int = 0
    elements: int = 0
    changed: set[str] = field(default_factory=set)
    watch_until: int = -1
    non_finite: int = 0
    scans: int = 0
    pending: NonFinite | None = None
    steps_at_pending: int = 0
    unsynced: Unsynced | None = None
    unreduced: int = 0  # backwards since the last reduction that did not reduce
    accumulated: bool = False  # the running backward adds to gradients that no step has used
    late_no_sync: int = 0  # backwards in no_sync that reduced, since their forward was not in it
    joined: bool = False  # was within `Join`, so that ranks may count unlike from then on
    nested: int = 0  # backwards within the running one
    loss: LossSeen | None = None  # of the running backward
    gradient_looks: int = 0
    evaluations: int = 0
    evaluated_at: int = -1
    evaluated_wrapped: bool = False
    searches: int = 0  # for unused parameters, at the ends of forwards
    search_ns: int = 0
    batches: BatchRuns = field(init=False)

    def __post_init__(self) -> None:
        self.batches = BatchRuns(self.schedule.is_due)

    @property
    def number(self) -> int:
        return self.shape.info.model

    def searched(self, spent_ns: int) -> None:
        """DDP has looked for unused parameters at the end of a forward."""
        self.searches += 1
        self.search_ns += spent_ns

    def tell_search(self, write: Callable[[UnusedSearch], None]) -> None:
        if self.searches:
            write(UnusedSearch(self.number, self.searches, self.search_ns))

    def step_without_reduction(
        self, site: Callable[[], Site | None], write: Callable[[Unsynced], None]
    ) -> None:
        """The optimizer has used gradients that were not reduced, or not all of them."""
        step, last = self.optimizer_steps, self.unsynced
        if last is None:
            partly = self.sync != self.sync_at_step
            last = Unsynced(self.number, step, self.sync, 0, 0, step, site(), partly=partly)
        steps = last.steps + 1
        forwards = last.forwards + self.forwards - self.forwards_at_step
        self.unsynced = replace(last, steps=steps, forwards=forwards, optimizer_steps=step)
        if self.schedule.is_due(steps):
            some = modellook.chosen(self.shape.parameters, steps)
            self.unsynced = replace(
                self.unsynced,
                parameters=modellook.values(some, steps),
                gradients=modellook.gradients(some, steps),
            )
            write(self.unsynced)
