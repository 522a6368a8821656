"""Hooks into DDP's forward and backward and into the optimizers, without touching the model."""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import unserializable_hook

from ddpdoctor.events import Phase
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.collectives import Collectives
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.modelfacts import Models
from ddpdoctor.recorder.phases import Phases

_BUCKETS_SETTLE: Final = 3  # DDP rebuilds its buckets once, before the second synchronised step
_OUTPUT_OBJECTS: Final = 2000  # of a model's output that are looked through for tensors


class _OptimizerStep(NamedTuple):
    """A step that was entered. `serial` is 0 for the optimizer of a model that is not ours."""

    serial: int
    frame: FrameType  # torch's wrapper around `step`, for as long as that runs


@dataclass(slots=True, eq=False)
class _Model:
    """What is known of one DDP model."""

    output_hook: Any  # one for all of its outputs
    will_sync: bool = False  # as its last forward decided
    buckets: tuple[int, ...] = ()
    synced: int = 0  # backwards that reduced gradients


class TrainingHooks:
    """Phases of the DDP models that were added; `remove` restores every class it patched."""

    def __init__(
        self,
        phases: Phases,
        collectives: Collectives,
        models: Models,
        sites: CallSites,
        guard: Guard,
    ) -> None:
        self._phases = phases
        self.learning = models
        self.collectives = collectives
        self._sites = sites
        self.guard = guard
        self._models: weakref.WeakKeyDictionary[DistributedDataParallel, _Model]
        self._models = weakref.WeakKeyDictionary()
        self._parameters: set[int] = set()
        self._is_ours: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._forward = 0
        self._search_began_ns = 0
        self._backward = 0
        self._blocked = 0
        self._optimizers: list[_OptimizerStep] = []  # nested ones: the innermost is last
        self._counts_cost = False
        self._in_backward: dict[DistributedDataParallel, _Model] = {}  # whose outputs it reached
        self._syncs = False  # in the running backward a model is to reduce its gradients
        self._issued = 0  # collectives, when it began
        self._when_compute_ends = functools.partial(guard.run, self._compute_ends)
        self._when_backward_ends = functools.partial(guard.run, self._backward_ends)
        self._originals = _patch_forward(self)
        self._handles = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]

    def add(self, model: DistributedDataParallel) -> None:
        if model not in self._models:
            self._models[model] = _Model(self._hook_of_outputs(model))
        self._parameters.update(id(parameter) for parameter in model.parameters())
        self._is_ours.clear()

    def __contains__(self, model: DistributedDataParallel) -> bool:
        return model in self._models

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        for name, original in self._originals.items():
            setattr(DistributedDataParallel, name, original)

    def forward_begins(self, model: DistributedDataParallel, inputs: Any, kwargs: Any) -> None:
        if model not in self._models:
            return
        frame = sys._getframe(1)
        training = torch.is_grad_enabled()
        if training:
            self._phases.train_here()
            self.guard.thread = self._phases.thread
        elif not self._phases.on_training_thread():
            return  # an evaluation beside the training
        if self._in_backward:  # an exception ended it
            self._in_backward = {}
            self.learning.backward_failed()
            self.collectives.backward_ended(0)
        if self._optimizers:
            self._drop_failed_optimizer_steps(frame)
        self._forward = self._phases.begin_forward(self._sites.here(frame), no_grad=not training)
        self.collectives.in_pre_forward = True
        if training:
            self.learning.forward_begins(model, inputs, kwargs)
        if self._phases.step >= 1 and not self._counts_cost:
            self._counts_cost = True
            self.guard.cost_ns = 0  # what starting took is no cost of a step

    def _drop_failed_optimizer_steps(self, frame: FrameType | None) -> None:
        """Those that raised never told their end; a closure runs within one that still does."""
        running = set()
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        while self._optimizers and id(self._optimizers[-1].frame) not in running:
            self._phases.end(self._optimizers.pop().serial)

    def forward_failed(self, error: RuntimeError) -> None:
        self.learning.failed(error, self._sites.site(sys._getframe(1)))

    def search_begins(self) -> None:
        """DDP is to look for unused parameters, which ends with the forward."""
        self._search_began_ns = time.monotonic_ns()

    def forward_ends(self, model: DistributedDataParallel, output: Any) -> None:
        began_ns, self._search_began_ns = self._search_began_ns, 0
        known = self._models.get(model)
        if known is None:
            return
        if began_ns and model.training:
            self.learning.searched(model, time.monotonic_ns() - began_ns)
        self._phases.end(self._forward)
        if not (model.training and model.module.training):
            self.learning.evaluates(model, wrapped=True)
        if not torch.is_grad_enabled():
            return
        known.will_sync = bool(model.require_backward_grad_sync)  # DDP too decides it here
        for tensor in (output,) if type(output) is torch.Tensor else _tensors(output):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(known.output_hook)  # type: ignore[no-untyped-call]

    def set_to_evaluate(self, model: DistributedDataParallel) -> None:
        if model in self._models:
            self.learning.set_to_evaluate(model)

    def _hook_of_outputs(self, model: DistributedDataParallel) -> Any:
        """One for each model: to keep the compiler out of a new function takes longer than it."""
        reference = weakref.ref(model)

        def backward_begins(gradient: torch.Tensor) -> None:
            self.guard.run(self._backward_begins, reference(), gradient)

        return unserializable_hook(  # type: ignore[no-untyped-call]
            private.without_dynamo(backward_begins)
        )

    def _backward_begins(
        self, model: DistributedDataParallel | None, gradient: torch.Tensor
    ) -> None:
        """A backward may go through several models: then each has buckets of its own.

        On a GPU it runs on a thread of the engine, for which the training thread waits.
        """
        known = self._models.get(model) if model is not None else None
        if model is None or known is None or model in self._in_backward:
            return
        if not (self._phases.on_training_thread() or gradient.is_cuda):
            return
        if not self._in_backward:
            self._syncs, self._issued = False, self.collectives.issued
            site = self._sites.here(sys._getframe(1))
            self._backward = self._phases.begin(Phase.BACKWARD, site)
            phases = self._phases
            self.collectives.buckets.begin(site, phases.step_of_record, phases.sync, phases.depth)
            private.after_backward(self._when_compute_ends)
        self._in_backward[model] = known
        self.learning.backward_begins(model, gradient)
        if known.will_sync:
            self._syncs = True
            self.collectives.buckets.expect(self._buckets(model, known))

    def _buckets(self, model: DistributedDataParallel, known: _Model) -> tuple[int, ...]:
        if known.synced <= _BUCKETS_SETTLE:
            known.buckets = private.bucket_bytes(model)
        return known.buckets

    def _compute_ends(self) -> None:
        """Before DDP's own callback, which waits for the reductions."""
        reduces = self._syncs or self.collectives.issued > self._issued
        if not (reduces and self._phases.switch.on):  # nothing to wait for, or to tell of it
            self._backward_ends()
            return
        for model in self._in_backward:
            self.learning.backward_computed(model)
        self._blocked = self._phases.begin(Phase.BLOCKED, 0)
        private.after_backward(self._when_backward_ends)

    def _backward_ends(self) -> None:
        """After DDP's own callback, since this one was queued from within a callback."""
        now = self._phases.end(self._blocked)
        self.collectives.backward_ended(now)
        self._phases.end(self._backward)
        for model, known in self._in_backward.items():
            self.learning.backward_ends(model, synced=known.will_sync)
        if self._syncs and self.collectives.issued > self._issued:
            self._phases.synced_backward()
            for known in self._in_backward.values():
                known.synced += 1
        self._in_backward = {}

    def _optimizer_begins(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self.guard.run(self._begin_optimizer, optimizer, sys._getframe(1))

    def _optimizer_ends(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self.guard.run(self._end_optimizer, optimizer, sys._getframe(1))

    def _begin_optimizer(self, optimizer: Optimizer, frame: FrameType) -> None:
        if self._optimizers:
            self._drop_failed_optimizer_steps(frame)
        serial = 0
        if self._holds_our_parameters(optimizer) and self._phases.on_training_thread():
            site = self._sites.here(sys._getframe(1))
            serial = self._phases.begin(Phase.OPTIMIZER, site)
            if not self._is_within_a_step():
                self.learning.optimizer_begins(optimizer)
        self._optimizers.append(_OptimizerStep(serial, frame))

    def _end_optimizer(self, optimizer: Optimizer, frame: FrameType) -> None:
        if not self._optimizers:
            return
        serial = self._optimizers.pop().serial
        if serial == 0:
            return
        self._phases.end(serial)
        if not self._is_within_a_step():
            self._phases.optimizer_stepped()
            self.learning.optimizer_ends(optimizer, frame)

    def _is_within_a_step(self) -> bool:
        """Of an optimizer of ours."""
        return bool(self._optimizers) and any(step.serial for step in self._optimizers)

    def _holds_our_parameters(self, optimizer: Optimizer) -> bool:
        ours = self._is_ours.get(optimizer)
        if ours is None:
            ours = self._is_ours[optimizer] = any(
                id(parameter) in self._parameters
                for group in optimizer.param_groups
                for parameter in group["params"]
            )
        return ours


def _patch_forward(hooks: TrainingHooks) -> dict[str, Any]:
    """Patch the class: a subclass that overrides forward still calls these two."""
    ddp = DistributedDataParallel
    names = (private.PRE_FORWARD, private.POST_FORWARD, "train")
    originals = {name: getattr(ddp, name) for name in names}
    pre_forward, post_forward, train = originals.values()
    guard = hooks.guard

    @functools.wraps(pre_forward)
    def recorded_pre_forward(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        forward_begins(self, inputs, kwargs)
        try:
            return pre_forward(self, *inputs, **kwargs)
        except RuntimeError as error:
            failed(error)
            raise
        finally:
            pre_forward_ends()

    @private.without_dynamo
    def pre_forward_ends() -> None:
        hooks.collectives.in_pre_forward = False

    @functools.wraps(post_forward)
    def recorded_post_forward(self: DistributedDataParallel, output: Any) -> Any:
        if self.find_unused_parameters:
            search_begins()
        output = post_forward(self, output)
        forward_ends(self, output)
        return output

    @functools.wraps(train)
    def recorded_train(self: DistributedDataParallel, mode: bool = True) -> Any:
        result = train(self, mode)
        if not mode:
            guard.run(hooks.set_to_evaluate, self)
        return result

    forward_begins = private.without_dynamo(
        lambda model, inputs, kwargs: guard.run(hooks.forward_begins, model, inputs, kwargs)
    )
    failed = private.without_dynamo(lambda error: guard.run(hooks.forward_failed, error))
    search_begins = private.without_dynamo(lambda: guard.run(hooks.search_begins))
    forward_ends = private.without_dynamo(
        lambda model, output: guard.run(hooks.forward_ends, model, output)
    )
    setattr(ddp, private.PRE_FORWARD, recorded_pre_forward)
    setattr(ddp, private.POST_FORWARD, recorded_post_forward)
    ddp.train = recorded_train  # type: ignore[method-assign]
    return originals


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Tensors in a model's output: a tensor, containers, or an object with tensor attributes."""
    waiting = [output]
    for _ in range(_OUTPUT_OBJECTS):
        if not waiting:
            return
        part = waiting.pop()
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, (list, tuple, set)):
            waiting += part
        elif hasattr(part, "__dict__") and not isinstance(part, type):
            waiting += vars(part).values()
