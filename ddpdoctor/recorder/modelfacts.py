"""What is recorded of the models while they train, beside the time that it takes.

Looks at a few elements of a few tensors, at reductions that all ranks choose alike. Tensors on a
GPU are not read, since that would wait for it. No random number is drawn, no tensor written.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddpdoctor.events import Site
from ddpdoctor.modelevents import (
    MOST_MODELS,
    Batches,
    ChangeKind,
    EvaluationSample,
    FailureKind,
    GradientTimes,
    Loss,
    ModelChange,
    ModelFact,
    ModelSample,
    NonFinite,
    Summed,
)
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder import checksums, modellook
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.losslook import LossLooks
from ddpdoctor.recorder.modelfailure import failure_of, uncaught
from ddpdoctor.recorder.modellook import Use
from ddpdoctor.recorder.modelshape import (
    first_tensor,
    optimizer_info,
    rates,
    shape_of,
    shape_of_rest,
    text,
)
from ddpdoctor.recorder.modelstate import Trained
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.rescaling import Reduced

# A gradient that is not finite mostly leaves the weights so, and is seen a few steps later, too.
ALL_LOOKED_AT: Final = 256  # reductions from the first one on
LOOKED_AT_EVERY: Final = 4  # of those after them
_FULL_SCANS: Final = 3  # for the names of what is not finite; one reads all gradients
_MOST_NON_FINITE: Final = 64  # that are told one by one; then each whose number is a power of two
_NAMES_SHOWN: Final = 16
_WATCHED_AFTER: Final = 1000  # reductions after one that was not finite, each looked at
_MOST_GRADIENT_LOOKS: Final = 64  # with 1024 parameters some 10 KB each
_MOST_EVALUATIONS: Final = 512


class Models:
    """The models that are recorded, and the optimizers that hold their parameters."""

    def __init__(
        self, write: Callable[[ModelFact], None], phases: Phases, sites: CallSites, guard: Guard
    ) -> None:
        self._write = write
        self._guard = guard
        self._phases = phases
        self._sites = sites
        self._models: weakref.WeakKeyDictionary[DistributedDataParallel, Trained]
        self._models = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, tuple[Trained, ...]]
        self._optimizers = weakref.WeakKeyDictionary()
        self._optimizer_numbers: weakref.WeakKeyDictionary[Optimizer, int]
        self._optimizer_numbers = weakref.WeakKeyDictionary()
        self._optimizers_seen = 0
        self._numbers = 0
        self._endings: list[weakref.finalize[..., DistributedDataParallel]] = []
        self._failures: set[FailureKind] = set()
        self._losses = LossLooks(sites)
        self._in_backward: list[Trained] = []
        self.awaits_backward = False  # a model had a forward in training, and no backward since
        self._due: set[int] = set()  # models whose next reduction is to be looked at
        self._reduced: dict[int, Reduced] = {}  # by a look, until the optimizer's step

    def add(self, model: DistributedDataParallel) -> None:
        if self._numbers >= MOST_MODELS:
            return
        own = self._models[model] = Trained(shape_of(model, self._numbers))
        self._endings.append(weakref.finalize(model, self._guard.run, self._tell_rest, own))
        self._numbers += 1
        self._due.add(own.number)
        self._optimizers.clear()
        self._write(own.shape.info)

    def forward_begins(self, model: DistributedDataParallel, inputs: Any, kwargs: Any) -> None:
        """A forward with gradients of a model that is to learn."""
        own = self._models.get(model)
        if own is None or not model.training:
            return
        self._settle(own)
        own.joined = own.joined or private.joins(model)
        own.forwards += 1
        self.awaits_backward = True
        tensor = first_tensor(inputs, kwargs)
        if tensor is not None:
            own.samples += tensor.shape[0]
            own.elements += tensor.numel()

    def searched(self, model: DistributedDataParallel, spent_ns: int) -> None:
        if model in self._models:
            self._models[model].searched(spent_ns)

    def evaluates(self, model: DistributedDataParallel, *, wrapped: bool) -> None:
        """The model evaluates now: by its own forward, or it is set to, which may be all of it."""
        own = self._models.get(model)
        if own is None or not own.shape.buffers or own.evaluations >= _MOST_EVALUATIONS:
            return
        if own.evaluated_at == own.sync and (own.evaluated_wrapped or not wrapped):
            return
        own.evaluated_at = own.sync
        some = modellook.chosen(own.shape.buffers, 1)
        buffers = modellook.values(some, own.sync)
        own.evaluated_wrapped = wrapped
        own.evaluations += 1
        self._write(EvaluationSample(own.number, own.sync, buffers, wrapped))

    def set_to_evaluate(self, model: DistributedDataParallel) -> None:
        if self._phases.on_training_thread():
            self.evaluates(model, wrapped=False)

    def backward_called(self, roots: Any, gradients: Any, frame: FrameType | None) -> None:
        """Before any backward: of a loss, or one that runs within the backward of a model."""
        for own in self._in_backward:
            own.nested += 1
        if self._in_backward or not self._phases.switch.on:
            return
        if self._due and self._phases.on_training_thread():
            self._losses.look(roots, gradients, frame, self._models)

    def backward_begins(self, model: DistributedDataParallel, gradient: torch.Tensor) -> None:
        own = self._models.get(model)
        if own is None or not self._phases.switch.on:
            return
        self._in_backward.append(own)
        own.nested = 0
        sync = own.sync + 1
        looks = sync <= max(ALL_LOOKED_AT, own.watch_until) or sync % LOOKED_AT_EVERY == 0
        own.output = checksums.is_finite(gradient) if looks else None
        own.use = own.loss = None
        if own.schedule.is_due(sync):
            own.use = Use(model, own.shape)
            own.loss = self._losses.seen
            own.accumulated = (
                own.sync > 0
                and own.steps_at_sync == own.optimizer_steps
                and modellook.has_set_gradient(own.shape)
            )

    def backward_failed(self) -> None:
        """An exception ended it."""
        self._in_backward.clear()

    def backward_computed(self, model: DistributedDataParallel) -> None:
        own = self._models.get(model)
        if own is not None and own.use is not None:
            own.use.computed(model)

    def backward_ends(self, model: DistributedDataParallel, *, synced: bool) -> None:
        self._in_backward.clear()
        self._losses.drop()
        self.awaits_backward = False
        own = self._models.get(model)
        if own is None:
            return
        if not synced:
            own.output = None
            own.unreduced += 1
            return
        own.sync += 1
        (self._due.add if own.schedule.is_due(own.sync + 1) else self._due.discard)(own.number)
        own.unreduced = 0
        own.late_no_sync += not model.require_backward_grad_sync
        if not self._phases.switch.on:  # counted, so that ranks go on to count alike
            own.samples = own.elements = 0
            own.forwards_at_sync, own.output = own.forwards, None
            return
        due = own.schedule.is_due(own.sync) and not own.joined
        bad = None
        if due:
            bad = own.schedule.timed(own.sync, partial(self._sample, own, model))
        elif own.output is False or own.sync <= own.watch_until:
            bad = modellook.some_gradient_is_not_finite(own.shape)
        if own.output is False or bad:
            self._found_non_finite(own, bad)
        own.output = None
        self._count_batch(own, due=due)
        own.forwards_at_sync, own.steps_at_sync = own.forwards, own.optimizer_steps

    def optimizer_begins(self, optimizer: Optimizer) -> None:
        for own in self._held_by(optimizer):
            reduced = self._reduced.pop(own.number, None)
            if reduced is not None:
                for fact in reduced.facts(own.forwards - own.forwards_at_step):
                    self._write(fact)

    def sum_in_step(self, summed: Summed) -> bool:
        """Numbers that are summed between a reduction that is looked at and the step.

        Whether they are: then they are told with what becomes of the gradients until the step.
        """
        return any(reduced.adds(summed) for reduced in self._reduced.values())

    @property
    def steps_next(self) -> bool:
        """Whether a reduction was looked at, and its step is still to come."""
        return any(reduced.takes_sums for reduced in self._reduced.values())

    @property
    def reductions(self) -> int:
        return self._phases.sync

    def optimizer_ends(self, optimizer: Optimizer, frame: FrameType | None) -> None:
        """The outermost step ended; a closure may have run backward within it."""
        for own in self._held_by(optimizer):
            own.optimizer_steps += 1
            if own.schedule.is_due(own.sync + 1):
                own.rates = rates(optimizer)
            if own.shape.info.name == "":
                self._sample_rest(own)
            elif (own.sync == own.sync_at_step or own.unreduced) and modellook.has_gradient(
                own.shape
            ):
                own.step_without_reduction(lambda: self._sites.site(frame), self._write)
            own.sync_at_step, own.forwards_at_step = own.sync, own.forwards
            own.unreduced = 0

    def failed(self, error: BaseException, here: Site | None = None) -> None:
        """An error that ends a forward, or the training; told once if a model was misused."""
        models = [(own.shape, own.sync) for own in self._models.values()]
        failure = failure_of(error, models, here)
        if failure is not None and failure.kind not in self._failures:
            self._failures.add(failure.kind)
            self._write(failure)

    def finish(self) -> None:
        """The process ends."""
        if (error := uncaught()) is not None:
            self.failed(error)
        for ending in self._endings:
            ending()

    def _tell_rest(self, own: Trained) -> None:
        """The process ends, or before that the model, as one that a function had to itself."""
        self._settle(own)
        self._write_runs(own)

    def _settle(self, own: Trained) -> None:
        """What was left open until the next step of the training is known by now."""
        if own.pending is not None:
            stepped = own.optimizer_steps > own.steps_at_pending
            self._write(replace(own.pending, stepped=stepped))
            own.pending = None

    def _sample(self, own: Trained, model: DistributedDataParallel) -> bool:
        """Take a look; whether it saw a gradient that is not finite."""
        shape = own.shape
        self._tell_communication_hook(own, model)
        some = modellook.chosen(shape.parameters, own.sync)
        looked_at: tuple[int, ...] = ()
        unused: tuple[int, ...] = ()
        unreduced: tuple[int, ...] = ()
        if own.use is not None and own.use.is_measured:
            unused, unreduced = own.use.unused_and_unreduced(model)
            if own.gradient_looks < _MOST_GRADIENT_LOOKS:
                own.gradient_looks += 1
                times = own.use.gradient_times(model)
                self._write(GradientTimes(own.number, own.sync, *times))
            looked_at = tuple(p for p, watched in enumerate(shape.parameters) if watched.place >= 0)
        sample = ModelSample(
            own.number, own.sync, self._phases.step, own.forwards, own.optimizer_steps,
            modellook.values(some, own.sync), modellook.gradients(some, own.sync),
            looked_at, unused, unreduced, self._local_buffers(own, model), own.rates,
            own.accumulated, own.late_no_sync, own.nested,
        )  # fmt: skip
        self._write(sample)
        if own.loss is not None:
            forwards = own.forwards - own.forwards_at_sync
            self._write(Loss(own.number, own.sync, forwards, own.loss.terms, own.loss.site))
        self._tell_changes(own, modellook.changes(some))
        self._reduced[own.number] = Reduced(shape, sample)
        return None in sample.gradients.sizes

    def _local_buffers(self, own: Trained, model: DistributedDataParallel) -> Any:
        """Buffers that DDP does not send from rank 0; those that it does differ in between."""
        if model.broadcast_buffers:
            return checksums.digests((), 0)
        return modellook.values(modellook.chosen(own.shape.buffers, own.sync), own.sync)

    def _tell_communication_hook(self, own: Trained, model: DistributedDataParallel) -> None:
        """It may have been registered after the model was wrapped."""
        hooks = private.communication_hooks(model)
        arguments = own.shape.info.arguments
        if hooks and "communication hook" not in arguments:
            arguments["communication hook"] = text(", ".join(hooks))
            self._write(own.shape.info)

    def _tell_changes(self, own: Trained, changes: Iterable[tuple[ChangeKind, str]]) -> None:
        names: dict[ChangeKind, list[str]] = {}
        for kind, name in changes:
            if name not in own.changed:
                own.changed.add(name)
                names.setdefault(kind, []).append(name)
        for kind, found in names.items():
            shown = tuple(found[:_NAMES_SHOWN])
            self._write(ModelChange(own.number, own.sync, kind, shown, len(found)))

    def _found_non_finite(self, own: Trained, reduced: bool | None) -> None:
        output = None if own.output is None else not own.output
        self._settle(own)
        own.non_finite += 1
        if own.non_finite == 1:
            own.watch_until = own.sync + _WATCHED_AFTER
        number = own.non_finite
        if number > _MOST_NON_FINITE and number & (number - 1):
            return
        names: list[str] = []
        weights = None
        if own.scans < _FULL_SCANS:
            own.scans += 1
            names = modellook.not_finite(own.shape)
            weights = modellook.a_weight_is_not_finite(own.shape)
        own.pending = NonFinite(
            own.number, own.sync, self._phases.step, output, reduced,
            tuple(names[:_NAMES_SHOWN]), len(names), weights,
        )  # fmt: skip
        own.steps_at_pending = own.optimizer_steps

    def _count_batch(self, own: Trained, *, due: bool) -> None:
        size = (own.samples, own.elements, own.forwards - own.forwards_at_sync)
        own.samples = own.elements = 0
        if own.batches.count(own.sync, size) or due:
            self._write_runs(own)

    def _write_runs(self, own: Trained) -> None:
        own.tell_search(self._write)
        if runs := own.batches.take():
            self._write(Batches(own.number, runs))

    def _sample_rest(self, own: Trained) -> None:
        """Parameters outside all wrapped models, as the optimizer's step left them."""
        own.sync += 1
        if own.schedule.is_due(own.sync):
            some = modellook.chosen(own.shape.parameters, own.sync)
            self._write(ModelSample(
                own.number, own.sync, self._phases.step, 0, own.optimizer_steps,
                modellook.values(some, own.sync), modellook.gradients(some, own.sync),
            ))  # fmt: skip

    def _held_by(self, optimizer: Optimizer) -> tuple[Trained, ...]:
        """The models whose parameters an optimizer holds, and the rest of it as a model."""
        held = self._optimizers.get(optimizer)
        return held if held is not None else self._learn(optimizer)

    def _learn(self, optimizer: Optimizer) -> tuple[Trained, ...]:
        owners = {id(p): own for model, own in self._models.items() for p in model.parameters()}
        found: dict[Trained, None] = {}
        rest: list[torch.Tensor] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                own = owners.get(id(parameter))
                if own is not None:
                    found[own] = None
                elif parameter.requires_grad:
                    rest.append(parameter)
        models = tuple(found)
        if models and self._numbers < MOST_MODELS:
            numbers = tuple(own.number for own in models)
            number = self._optimizer_numbers.get(optimizer, self._optimizers_seen)
            self._optimizers_seen = max(self._optimizers_seen, number + 1)
            self._optimizer_numbers[optimizer] = number
            if number < MOST_MODELS:
                self._write(optimizer_info(optimizer, number, numbers, len(rest)))
            if rest:
                reduced_over = models[0].shape.info.group
                models += (Trained(shape_of_rest(rest, self._numbers, reduced_over)),)
                self._numbers += 1
                self._write(models[-1].shape.info)
        self._optimizers[optimizer] = models
        return models
