"""Which steps are recorded: settled when recording begins, and amended while the job runs.

Steps are counted as in the report, by synchronised backwards and from 1 on, so that a number means
the same step on every rank. An amendment is a file in the attempt's folder, which is foreign.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import asdict, dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

CONTROL_FILE: Final = "control.json"
CONTROL_BYTES: Final = 64 * 1024
MOST_SWITCHES: Final = 256  # in the file; the oldest go first
MOST_EVERY: Final = 1_000_000
FIRST_STEP: Final = 1
_WINDOW: Final = re.compile(r"\s*(\d{0,15})\s*:\s*(\d{0,15})\s*", re.ASCII)

Step = Annotated[int, Meta(ge=FIRST_STEP, le=2**53)]
Every = Annotated[int, Meta(ge=1, le=MOST_EVERY)]


@dataclass(frozen=True)
class Steps:
    """A window of steps, both ends within; without `last` it has no end."""

    first: int
    last: int | None

    @classmethod
    def parse(cls, text: str) -> Steps:
        """From `100:200`, `100:` or `:200`. Raises ValueError."""
        match = _WINDOW.fullmatch(text)
        if match is None or not any(match.groups()):
            raise ValueError("a window of steps such as 100:200")
        steps = cls(int(match[1] or FIRST_STEP), int(match[2]) if match[2] else None)
        if steps.first < FIRST_STEP or (steps.last is not None and steps.last < steps.first):
            raise ValueError("a window of steps from 1 on whose end is not before its beginning")
        return steps


@dataclass(frozen=True)
class Switch:
    """From this step on a rank records, or does not; `detail_every` None: as set at the start."""

    sync: Step
    on: bool
    detail_every: Every | None = None


_ALL: Final = Switch(FIRST_STEP, on=True)


@dataclass(frozen=True)
class Schedule:
    """Switches in the order of their steps. Before the first one, all is recorded."""

    switches: tuple[Switch, ...] = ()

    @classmethod
    def of(cls, steps: Steps | None) -> Schedule:
        if steps is None:
            return cls()
        switches = [Switch(FIRST_STEP, on=False)] if steps.first > FIRST_STEP else []
        switches.append(Switch(steps.first, on=True))
        if steps.last is not None:
            switches.append(Switch(steps.last + 1, on=False))
        return cls(tuple(switches))

    def at(self, sync: int) -> Switch:
        """The switch that holds for this step."""
        if not self.switches:
            return _ALL
        index = bisect_right(self.switches, sync, key=attrgetter("sync"))
        return self.switches[index - 1] if index else _ALL

    def amended(self, told: tuple[Switch, ...]) -> Schedule:
        """With what is told in place of all that was to come from its first step on."""
        if not told:
            return self
        return Schedule((*(s for s in self.switches if s.sync < told[0].sync), *told))


@dataclass(frozen=True)
class _Control:
    schema_version: Literal[1]
    switches: Annotated[tuple[Switch, ...], Meta(max_length=MOST_SWITCHES)]


def control_bytes(switches: tuple[Switch, ...]) -> bytes:
    return msgspec.json.encode(asdict(_Control(1, switches[-MOST_SWITCHES:])))


def read_control(raw: bytes) -> tuple[Switch, ...]:
    """The switches in a control file. Raises ValueError (also as msgspec's errors)."""
    if len(raw) > CONTROL_BYTES:
        raise ValueError(f"is larger than {CONTROL_BYTES} bytes")
    switches = msgspec.json.decode(raw, type=_Control).switches
    steps = [switch.sync for switch in switches]
    if any(later <= earlier for earlier, later in pairwise(steps)):
        raise ValueError("its switches are not in the order of their steps")
    return switches
