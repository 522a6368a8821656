"""Recording inside the training process. `wrap` is the one line that users add."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.recorder.guard import Guard

if TYPE_CHECKING:
    from ddpdoctor.recorder.session import Recorder

log = logging.getLogger("ddpdoctor")


def wrap(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Record this model's training; stands where `DistributedDataParallel(module, ...)` stood.

    Takes DistributedDataParallel's arguments and returns the DDP model itself; a module that is
    one already is recorded as it is. Without an initialised process group the module comes
    back unchanged, with one warning. With DDPDOCTOR_DISABLE=1 nothing is recorded.

    Errors are those of DistributedDataParallel; recording itself raises none.
    """
    if not (dist.is_available() and dist.is_initialized()):
        log.warning(
            "ddpdoctor: no process group is initialised, so there is nothing to record; "
            "call torch.distributed.init_process_group before ddpdoctor.wrap"
        )
        return module
    recorder = begin()
    model = module
    if not isinstance(module, DistributedDataParallel):
        model = DistributedDataParallel(module, *args, **kwargs)
    if recorder is not None:
        recorder.guard.run(recorder.add, model)
    return model


def begin() -> Recorder | None:
    """The recorder of this process, begun if need be; None where there is nothing to record."""
    if os.environ.get("DDPDOCTOR_DISABLE", "0") not in ("", "0"):
        return None
    return Guard(_cannot_record).run(_begin)


def _begin() -> Recorder | None:
    """The import, too, may fail: where a private name of torch is gone."""
    from ddpdoctor.recorder import session

    return session.begin()


def _cannot_record(error: Exception) -> None:
    log.warning(
        "ddpdoctor: cannot record here; training goes on (%s: %s)", type(error).__name__, error
    )
