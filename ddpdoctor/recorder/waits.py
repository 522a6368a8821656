"""Time in which the training thread stands in `wait` for a collective that it had gone on from.

A call with `async_op=True` comes back at once and is waited for later; so is the result of a
functional collective. Torch's own wait within a call that blocks is no record of its own.
"""

from __future__ import annotations

import sys
from typing import Any

from ddpdoctor.events import Kind, Phase
from ddpdoctor.recorder import _torch_private as private
from ddpdoctor.recorder.callsite import CallSites
from ddpdoctor.recorder.collectives import Awaited, Collectives
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.phases import Phases


class Waits:
    """Patches what waits for a Work; `remove` restores it."""

    def __init__(
        self, phases: Phases, collectives: Collectives, sites: CallSites, guard: Guard
    ) -> None:
        self._phases = phases
        self._collectives = collectives
        self._sites = sites
        self._guard = guard
        self._registration = private.WaitRegistration(self._recorded)

    def remove(self) -> None:
        self._registration.remove()

    def _recorded(self, original: private.Kernel) -> private.Kernel:
        guard, begins, ends = self._guard, self._begins, self._ends

        def wait(*arguments: Any, **named: Any) -> Any:
            waited, completed = guard.run(begins), False
            try:
                result = original(*arguments, **named)
                completed = True
                return result
            finally:
                if waited is not None:
                    guard.run(ends, waited, completed)

        return wait

    def _begins(self) -> Awaited | int | None:
        """The blocking call that waits here, or the serial number of a new record."""
        if not self._phases.switch.on or not self._phases.on_training_thread():
            return None
        caller = self._collectives.caller(sys._getframe(1))
        awaited = self._collectives.take_awaited(caller)
        if awaited is not None:
            return awaited
        if self._phases.current is Phase.BLOCKED:
            return None
        return self._phases.begin(Phase.BLOCKED, self._sites.here(caller), kind=Kind.WAIT)

    def _ends(self, waited: Awaited | int, completed: bool) -> None:
        if isinstance(waited, int):
            self._phases.end(waited)
        else:
            self._collectives.was_awaited(waited, completed)
