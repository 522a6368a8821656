"""Ranks compare their facts when recording begins: what is wrong with a launch is said at once.

It runs beside the training, in a thread with a client of the store of its own. Each rank leaves its
facts there and goes; rank 0 waits for them a bounded time, judges, and warns once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from torch import nn

from ddpdoctor.checks import launch_check_of, run_check
from ddpdoctor.events import RankInfo
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launchfacts import LaunchFacts, Process, process_of
from ddpdoctor.preflight.collect import of_this_node
from ddpdoctor.preflight.launcher import against_slurm
from ddpdoctor.processfacts import decoded, encoded
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.guard import Guard

log = logging.getLogger("ddpdoctor")

PATIENCE_S: Final = 60.0  # for ranks that come late to their first model
_LOOK_EVERY_S: Final = 0.25
_STOP_S: Final = 5.0
_PREFIX: Final = "ddpdoctor/launch"
# Named here, so that the training process need not search for all checks and load them.
_CHECKS: Final = (
    "shared_device", "world_size_mismatch", "environment_drift", "wrong_interface",
    "resource_limits",
)  # fmt: skip


class LaunchWatch:
    """Begins with the first model, when the device is known; `stop` ends it early."""

    def __init__(self, info: RankInfo, tell: Callable[[Process], None]):
        self._info = info
        self._tell = tell
        self._stop = threading.Event()
        self._device: int | None = None
        self._thread: threading.Thread | None = None

    def begin(self, model: nn.Module) -> None:
        """Not again for a second model."""
        if self._thread is not None:
            return
        parameter = next(model.parameters(), None)
        if parameter is not None and parameter.device.type == "cuda":
            self._device = parameter.device.index
        self._thread = threading.Thread(target=self._run, name="ddpdoctor-launch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=_STOP_S)

    def _run(self) -> None:
        """Where the store has no clone or is gone, or a file is closed, nothing is said."""
        Guard(lambda error: log.info("ddpdoctor: launch not compared (%s)", error)).run(
            self._compare
        )

    def _compare(self) -> None:
        own = self._own_facts()
        self._tell(own)
        store = private.store_of_its_own()
        store.set(f"{_PREFIX}/{self._info.rank}", encoded(own))
        if self._info.rank == 0:
            self._warn(self._all(store))

    def _own_facts(self) -> Process:
        process = of_this_node(process_of(self._info))
        slurm = against_slurm(self._info.world_size, os.environ, may_spawn=True)
        return replace(process, device=self._device, problems=tuple(slurm))

    def _all(self, store: Any) -> LaunchFacts:
        """The facts of all ranks, or of those that came in time."""
        keys = [f"{_PREFIX}/{rank}" for rank in range(self._info.world_size)]
        deadline = time.monotonic() + PATIENCE_S
        while not store.check(keys) and time.monotonic() < deadline:
            if self._stop.wait(_LOOK_EVERY_S):
                break
        present = [key for key in keys if store.check([key])]
        found = [decoded(store.get(key)) for key in present]
        for key in present:  # of many ranks they would be megabytes, for the rest of the job
            store.delete_key(key)
        processes = tuple(process for process in found if process is not None)
        return LaunchFacts(processes, self._info.world_size)

    def _warn(self, facts: LaunchFacts) -> None:
        """At once; the report on the run finds the same by what each rank told."""
        findings = judge(facts)
        if findings:
            log.warning(
                "ddpdoctor: this launch has a fault: %s",
                "; ".join(f"{code} {name}: {found.message}" for code, name, found in findings),
            )


def judge(facts: LaunchFacts) -> Sequence[tuple[str, str, Finding]]:
    """What checks find of ranks that came together, at warning or above: code, name, finding."""
    results = [run_check(launch_check_of(module), facts) for module in _CHECKS]
    return [
        (result.code, result.name, finding)
        for result in results
        for finding in result.findings
        if finding.severity >= Severity.WARNING
    ]
