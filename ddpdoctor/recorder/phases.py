"""Phases and steps of the training thread: the state behind spans and step rows.

Spans nest, and a nanosecond belongs to the innermost one. Steps tile time: a step ends after the
last optimizer step that follows a synchronised backward; if none follows, where the next
training forward's input wait begins. Either is known only once that forward begins, so the end is
noted as a candidate, and the step is closed there. A user who marks the ends knows better.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from ddpdoctor.events import Flag, Kind, Phase
from ddpdoctor.recorder.parts import Parts, SoFar
from ddpdoctor.recorder.switch import RecordingSwitch
from ddpdoctor.recorder.timers import AnyFile
from ddpdoctor.schedule import Schedule

_ROW_PHASES: Final = (
    Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.BLOCKED, Phase.OPTIMIZER, Phase.BETWEEN,
)  # fmt: skip
_SPAN, _STEP, _NO_GRAD = int(Kind.SPAN), int(Kind.STEP), int(Flag.NO_GRAD)  # cheaper than enums
_BETWEEN: Final = int(Phase.BETWEEN)
_now = time.monotonic_ns
_BLOCKING_KEPT: Final = 10_000  # calls within a step; more only where no step ever ends


@dataclass(slots=True)
class BlockingCall:
    """A collective in which the training thread stands. The backend's thread fills in the end."""

    phase: Phase
    begin_ns: int
    end_ns: int = 0


class _StepEnd(NamedTuple):
    """A moment at which the step may have ended, with the time each phase had by then."""

    at_ns: int
    spent: tuple[int, ...]
    parts: SoFar


_UNRECORDED: Final = _StepEnd(0, (), SoFar(0, 0, 0, 0, 0, 0))


class Phases:
    """Which phase the training thread is in, and the step and sync counts."""

    def __init__(self, file: AnyFile, switch: RecordingSwitch | None = None) -> None:
        self._file = file
        self.switch = switch or RecordingSwitch(Schedule(), lambda _switch: None)
        self.parts = Parts()
        self.thread = threading.get_ident()
        self.step = 0
        self.sync = 0
        self.backwards = 0  # begun, synchronised or not
        self.evaluations = 0  # forwards without gradients
        self.steps_written = 0  # but the first, which holds what starting took
        self._unrecorded = 0
        self._open: list[tuple[int, Phase, Phase]] = []  # serial, phase, phase accounted to
        self._spent = [0] * len(Phase)
        self._accounted_ns = _now()
        self._step_begin: _StepEnd | None = None
        self._step_end: _StepEnd | None = None
        self._input_after_sync: _StepEnd | None = None
        self._synced_in_step = False
        self._user_ends_steps = False
        self._blocking: deque[BlockingCall] = deque(maxlen=_BLOCKING_KEPT)

    @property
    def current(self) -> Phase:
        """The phase that time is now accounted to."""
        return self._open[-1][2] if self._open else Phase.BETWEEN

    @property
    def depth(self) -> int:
        return len(self._open)

    @property
    def step_of_record(self) -> int:
        """Where what begins now belongs: behind what may be the step's end, to the next step."""
        ended = self._step_end is not None or self._input_after_sync is not None
        return self.step + ended

    def on_training_thread(self) -> bool:
        return threading.get_ident() == self.thread

    def train_here(self) -> None:
        """The calling thread is the training thread from now on."""
        if threading.get_ident() != self.thread:
            self.thread = threading.get_ident()
            self.parts.close()
            self.parts = Parts()

    def begin(self, phase: Phase, site: int, *, no_grad: bool = False, kind: int = _SPAN) -> int:
        """Open a span and return its serial number. Evaluation counts as between steps."""
        if not self.switch.on:
            return self._begin_unrecorded(phase, no_grad=no_grad)
        now, opened = _now(), self._open
        self._spent[opened[-1][2] if opened else _BETWEEN] += now - self._accounted_ns
        self._accounted_ns = now
        if self._step_begin is None and kind == _SPAN:
            self._step_begin = self._mark(now)
        if phase is Phase.INPUT and not no_grad and self._awaits_its_end():
            self._input_after_sync = self._mark(now)
        elif phase is Phase.BACKWARD:
            self.backwards += 1
        flags, accounted = 0, phase
        if no_grad:
            flags, accounted = _NO_GRAD, Phase.BETWEEN
            self.evaluations += phase is Phase.FORWARD
        step = self.step
        if phase is not Phase.OPTIMIZER and (self._step_end or self._input_after_sync):
            step += 1  # as in `step_of_record`
        serial = self._file.add(
            kind, phase, flags, len(opened), step, self.sync,
            0, 0, -1, site, -1, now, 0, 0, 0,
        )  # fmt: skip
        opened.append((serial, phase, accounted))
        return serial

    def _begin_unrecorded(self, phase: Phase, *, no_grad: bool) -> int:
        """Only what counting steps and telling evaluations needs. Such numbers are negative."""
        self.backwards += phase is Phase.BACKWARD
        self.evaluations += phase is Phase.FORWARD and no_grad
        self._unrecorded -= 1
        self._open.append((self._unrecorded, phase, Phase.BETWEEN))
        return self._unrecorded

    def end(self, serial: int) -> int:
        """Close a span, and with it those left open inside it. A span already closed is ignored.

        Returns when: monotonic nanoseconds.
        """
        now, opened = _now(), self._open
        if not opened or (opened[-1][0] != serial and all(entry[0] != serial for entry in opened)):
            return now
        self._spent[opened[-1][2]] += now - self._accounted_ns
        self._accounted_ns = now
        while opened:
            top = opened.pop()[0]
            self._file.finish(top, now)
            if top == serial:
                break
        return now

    def _awaits_its_end(self) -> bool:
        """Whether gradients were reduced in this step and nothing yet tells where it ends."""
        if self._step_end is not None or self._input_after_sync is not None:
            return False
        return self._synced_in_step and not self._user_ends_steps

    def was_evaluation(self, serial: int, duration_ns: int) -> None:
        """A closed input span turned out to feed no training: its time is between steps."""
        self._file.flag(serial, Flag.NO_GRAD)
        self._spent[Phase.INPUT] -= duration_ns
        self._spent[Phase.BETWEEN] += duration_ns

    def begin_forward(self, site: int, *, no_grad: bool) -> int:
        """A DDP forward begins: what an exception left open is closed, a step may end here."""
        while self._open and self._open[-1][1] is not Phase.OPTIMIZER:
            self.end(self._open[-1][0])
        may_end = self._step_end is not None or not self._open  # a closure runs within a step
        if not no_grad and self._synced_in_step and may_end and not self._user_ends_steps:
            self._close_step()
        return self.begin(Phase.FORWARD, site, no_grad=no_grad)

    def synced_backward(self) -> None:
        """A backward ended in which gradients were reduced."""
        self.sync += 1
        self._synced_in_step = True
        self._step_end = self._input_after_sync = None

    def optimizer_stepped(self) -> None:
        """An outermost optimizer step of a wrapped model ended."""
        if self._synced_in_step and not self._user_ends_steps:
            self.switch.look_ahead(self.sync + 1)
            self._step_end = self._mark(_now())

    def end_step_here(self) -> None:
        """The user says that a step ends here; from the first time on, none ends elsewhere."""
        self._user_ends_steps = True
        self._step_end = self._input_after_sync = None
        if self._synced_in_step:
            self.switch.look_ahead(self.sync + 1)
            self._close_step()

    def blocking_call(self, begin_ns: int) -> BlockingCall:
        """The training thread enters a collective and will stand in it until it completes."""
        call = BlockingCall(self.current, begin_ns)
        self._blocking.append(call)
        return call

    def finish(self) -> None:
        """The run ends: close what is open, and the last step if it is whole."""
        while self._open:
            self.end(self._open[-1][0])
        if self._step_end is not None:
            self._close_step()
        self.parts.close()

    def _mark(self, now: int) -> _StepEnd:
        if not self.switch.on:
            return _UNRECORDED
        spent, phase = list(self._spent), self._open[-1][2] if self._open else _BETWEEN
        spent[phase] += now - self._accounted_ns
        return _StepEnd(now, tuple(spent), self.parts.so_far(now))

    def _close_step(self) -> None:
        end = self._step_end or self._input_after_sync or self._mark(_now())
        begin = self._step_begin or end
        if self.switch.on and begin is not _UNRECORDED:
            self._write_step(begin, end)
            self.steps_written += self.step > 0
        self.step += 1
        self._step_begin = end
        self._step_end = self._input_after_sync = None
        self._synced_in_step = False
        self.switch.step_begins(self.sync + 1)

    def _write_step(self, begin: _StepEnd, end: _StepEnd) -> None:
        spent = [after - before for after, before in zip(end.spent, begin.spent, strict=True)]
        for phase, blocked in self._blocked_before(end.at_ns):
            spent[phase] -= blocked
            spent[Phase.BLOCKED] += blocked
        micros = [max(0, spent[phase]) // 1000 for phase in _ROW_PHASES]
        self._file.add_step((self.step, *micros, self.sync))  # type: ignore[arg-type]
        waited_ns = max(0, end.parts.run_queue - begin.parts.run_queue)
        self._file.add(
            _STEP, 0, 0, 0, self.step, self.sync, 0, 0, -1, 0, -1,
            begin.at_ns, 0, end.at_ns, waited_ns,
        )  # fmt: skip
        self.parts.write(
            self._file, self.step, self.sync, begin.parts, end.parts, begin.at_ns, end.at_ns
        )

    def _blocked_before(self, end_ns: int) -> list[tuple[Phase, int]]:
        """Time of completed blocking calls up to `end_ns`, overlaps counted once."""
        found: list[tuple[Phase, int]] = []
        if not self._blocking:
            return found
        covered_ns = 0
        for call in [call for call in self._blocking if call.begin_ns < end_ns]:
            if call.phase is not Phase.BLOCKED and call.end_ns:
                begin = max(call.begin_ns, covered_ns)
                found.append((call.phase, max(0, call.end_ns - begin)))
                covered_ns = max(covered_ns, call.end_ns)
        while self._blocking and self._blocking[0].begin_ns < end_ns:
            self._blocking.popleft()
        return found
