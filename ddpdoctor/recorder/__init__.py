"""Recording inside the training process. `wrap` is the one line that users add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.notices import warn
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.settings import settings

if TYPE_CHECKING:
    from ddpdoctor.recorder.session import Recorder

_HOST = torch.device("cpu")


def wrap(
    module: nn.Module,
    *args: Any,
    steps: str | None = None,
    detail_every: int | None = None,
    budget_mb: int | None = None,
    **kwargs: Any,
) -> nn.Module:
    """Record this model's training; stands where `DistributedDataParallel(module, ...)` stood.

    Takes DistributedDataParallel's arguments and returns the DDP model itself; a module that is
    one already is recorded as it is. Without an initialised process group the module comes
    back unchanged, with one warning. With DDPDOCTOR_DISABLE=1 nothing is recorded.

    `steps` ("100:200") records these steps only, `detail_every` keeps each so many-th step in
    detail, `budget_mb` bounds the detail; the README says what they are without an argument.

    Errors are those of DistributedDataParallel; recording itself raises none.
    """
    if not (dist.is_available() and dist.is_initialized()):
        warn(
            "no process group is initialised, so there is nothing to record; "
            "call torch.distributed.init_process_group before ddpdoctor.wrap"
        )
        return module
    recorder = begin(module, steps=steps, detail_every=detail_every, budget_mb=budget_mb)
    model = module
    if not isinstance(module, DistributedDataParallel):
        model = DistributedDataParallel(module, *args, **kwargs)
    if recorder is not None:
        recorder.guard.run(recorder.add, model)
    return model


def begin(module: nn.Module, **arguments: object) -> Recorder | None:
    """The recorder of this process, begun if need be; None where there is nothing to record."""
    return Guard(_cannot_record).run(_begin, module, arguments)


def _begin(module: nn.Module, arguments: dict[str, object]) -> Recorder | None:
    """The import, too, may fail: where a private name of torch is gone."""
    chosen = settings(**arguments)
    if chosen.disable:
        return None
    from ddpdoctor.recorder import session

    parameter = next(module.parameters(), None)
    recorder = session.begin(chosen, parameter.device if parameter is not None else _HOST)
    given = any(argument is not None for argument in arguments.values())
    if recorder is not None and given and recorder.settings != chosen:
        warn("recording has begun with other settings, which stay")
    return recorder


def _cannot_record(error: Exception) -> None:
    warn("cannot record here; training goes on (%s: %s)", type(error).__name__, error)
