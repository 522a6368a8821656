"""The user's marks in the record: spans with a name, and steps that end where the user says."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from ddpdoctor.events import MOST_NAMES, NAME_LENGTH, Flag, Kind
from ddpdoctor.recorder.facts import FactsFile
from ddpdoctor.recorder.guard import Guard
from ddpdoctor.recorder.phases import Phases
from ddpdoctor.recorder.writer import RankFile

SINGLE_SPANS: Final = 16  # of a step, each with a record of its own; the rest are added up
OTHER_NAMES: Final = 0  # stands for all names after the first MOST_NAMES
_NAMED: Final = int(Kind.NAMED)
_SUMMED: Final = int(Flag.SUMMED)


@dataclass(slots=True)
class _Open:
    begin_ns: int
    serial: int  # 0 where the span has no record of its own
    times: int = 1  # entered; it may be nested in itself


@dataclass(slots=True)
class _Sum:
    begin_ns: int
    end_ns: int = 0
    spans: int = 0
    spent_ns: int = 0


class NamedSpans:
    """Writes the marks of the training thread; those of other threads are passed over."""

    def __init__(self, file: RankFile, facts: FactsFile, phases: Phases, guard: Guard) -> None:
        self._file = file
        self._facts = facts
        self._phases = phases
        self._guard = guard
        self._numbers: dict[str, int] = {}
        self._open: dict[int, _Open] = {}
        self._sums: dict[int, _Sum] = {}
        self._step = 0
        self._single = 0

    def begin(self, name: str) -> None:
        self._guard.run(self._begin, name)

    def end(self, name: str) -> None:
        self._guard.run(self._end, name)

    def step(self) -> None:
        self._guard.run(self._end_step)

    def _begin(self, name: str) -> None:
        if not self._phases.switch.on or not self._phases.on_training_thread():
            return
        number = self._number(name)
        opened = self._open.get(number)
        if opened is not None:
            opened.times += 1
            return
        self._look_for_next_step()
        now, serial = time.monotonic_ns(), 0
        if self._single < SINGLE_SPANS:
            self._single += 1
            serial = self._file.add(
                _NAMED, 0, 0, len(self._open), self._step, self._phases.sync,
                0, 0, -1, number, -1, now, 0, 0, 0,
            )  # fmt: skip
        self._open[number] = _Open(now, serial)

    def _end(self, name: str) -> None:
        if not self._phases.on_training_thread():
            return
        number = self._number(name)
        opened = self._open.get(number)
        if opened is None:  # recording began within the span
            return
        opened.times -= 1
        if opened.times:
            return
        del self._open[number]
        now = time.monotonic_ns()
        if opened.serial:
            self._file.finish(opened.serial, now)
            return
        added = self._sums.setdefault(number, _Sum(opened.begin_ns))
        added.end_ns, added.spans = now, added.spans + 1
        added.spent_ns += now - opened.begin_ns

    def _number(self, name: str) -> int:
        known = self._numbers.get(name)
        if known is not None:
            return known
        if len(self._numbers) >= MOST_NAMES:
            return OTHER_NAMES
        number = self._numbers[name] = len(self._numbers) + 1
        self._facts.name(number, str(name)[:NAME_LENGTH])
        return number

    def _look_for_next_step(self) -> None:
        step = self._phases.step_of_record
        if step != self._step:
            self.write_sums()
            self._step, self._single = step, 0

    def write_sums(self) -> None:
        """One record for each name whose spans of this step have none of their own."""
        for number, added in self._sums.items():
            self._file.add(
                _NAMED, 0, _SUMMED, 0, self._step, self._phases.sync, added.spans, 0, -1, number,
                -1, added.begin_ns, 0, added.end_ns, added.spent_ns,
            )  # fmt: skip
        self._sums.clear()

    def _end_step(self) -> None:
        if self._phases.on_training_thread():
            self._phases.end_step_here()
