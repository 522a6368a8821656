"""Calls of the script that no hook of torch tells: `backward` with its roots, and `eval()`."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.modelfacts import Models


class UserCalls:
    """Stands around `torch.autograd.backward` and `nn.Module.eval`; `remove` restores both."""

    def __init__(self, models: Models, guard: Guard) -> None:
        self._models = models
        self._guard = guard
        self._inner: dict[int, weakref.ref[DistributedDataParallel]] = {}  # by the module within
        self._backward = torch.autograd.backward
        self._eval = nn.Module.eval
        torch.autograd.backward = self._around_backward(self._backward)
        nn.Module.eval = self._around_eval(self._eval)  # type: ignore[method-assign]

    def add(self, model: DistributedDataParallel) -> None:
        self._inner[id(model.module)] = weakref.ref(model)

    def remove(self) -> None:
        torch.autograd.backward = self._backward
        nn.Module.eval = self._eval  # type: ignore[method-assign]

    def _around_backward(self, original: Any) -> Any:
        guard, called = self._guard, self._models.backward_called

        @functools.wraps(original)
        def backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
            gradients = arguments[0] if arguments else named.get("grad_tensors")
            guard.run(called, tensors, gradients, sys._getframe(1))
            return original(tensors, *arguments, **named)

        return private.without_dynamo(backward)

    def _around_eval(self, original: Any) -> Any:
        guard, inner, evaluates = self._guard, self._inner, self._evaluates

        @functools.wraps(original)
        def eval_(module: nn.Module) -> Any:
            result = original(module)
            if id(module) in inner:
                guard.run(evaluates, module)
            return result

        return eval_

    def _evaluates(self, module: nn.Module) -> None:
        """A wrapped model's inside is set to evaluate, past the wrapped model."""
        model = self._inner[id(module)]()
        if model is not None and model.module is module:
            self._models.set_to_evaluate(model)
