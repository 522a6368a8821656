"""Under `ddpdoctor run`: does a script train in a process group without any DDP model?

Installed by the bootstrap for the first optimizer steps only, and gone once it knows.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ddpdoctor.checks import launch_check_of, run_check
from ddpdoctor.checks.not_wrapped import LEAST_STEPS
from ddpdoctor.launchfacts import LaunchFacts, Process, Unsynced
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder import joinwatch
from ddpdoctor.recorder.guard import Guard

log = logging.getLogger("ddpdoctor")


class UnwrappedWatch:
    """Counts optimizer steps and the collectives between them; says once what it saw."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._guard = Guard(lambda error: done())
        self._collectives: int | None = None
        self._steps = 0
        self._without = 0

    def stepped(self, *_: Any) -> None:
        """After every optimizer step of the process."""
        self._guard.run(self._count)

    def _count(self) -> None:
        if not dist.is_initialized() or dist.get_world_size() < 2:
            return
        before, self._collectives = self._collectives, private.collectives_so_far()
        if before is None:
            return
        self._steps += 1
        self._without += self._collectives == before
        if self._steps >= LEAST_STEPS:
            self._done()
            joinwatch.trains_unsynced(Unsynced(self._steps, self._without))
            if dist.get_rank() == 0:
                self._say()

    def _say(self) -> None:
        process = Process(
            socket.gethostname(),
            os.getpid(),
            "",
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            unsynced=Unsynced(self._steps, self._without),
        )
        result = run_check(
            launch_check_of("not_wrapped"), LaunchFacts((process,), dist.get_world_size())
        )
        for finding in result.findings:
            log.warning(
                "ddpdoctor: %s %s: %s. %s", result.code, result.name, finding.message, finding.fix
            )
