"""Recording inside the training process. `wrap` is the one line that users add."""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpdoctor.recorder import session

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
    recorder = session.begin()
    model = module
    if not isinstance(module, DistributedDataParallel):
        model = DistributedDataParallel(module, *args, **kwargs)
    if recorder is not None:
        recorder.guard.run(recorder.add, model)
    return model
