"""A run as checked DataFrames on the common clock: steps, segments, collectives.

Each frame is built from one row class, whose field names are its columns. A segment is a
stretch of the training thread in one phase; the segments of a rank tile the steps that were
recorded in detail, and WAIT and TRANSFER are already told apart in them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from functools import cached_property

import pandas as pd

from ddpdoctor.calltable import CallTable
from ddpdoctor.clocks import CommonClock, common_clock
from ddpdoctor.gathering import Gathered
from ddpdoctor.matching import Matched
from ddpdoctor.parts import named_columns, pause_columns
from ddpdoctor.recordedcalls import recorded_calls
from ddpdoctor.tiling import STEP_PHASES, Tiling, narrow
from ddpdoctor.tracefile import Run

__all__ = ["STEP_PHASES", "Tables", "build_tables"]


@dataclass(frozen=True)
class StepRow:
    """One step of one rank. The seven terms add up to `step_ns`; `sync` aligns ranks.

    `overlapped_ns` is beside the sum, and -1 where completions were not stamped. What follows it
    is *of* the sum, whichever phase it falls into, and -1 where it was not measured: see
    `events.Part`.
    """

    rank: int
    step: int
    sync: int
    begin_ns: int
    end_ns: int
    input_ns: int
    forward_ns: int
    backward_ns: int
    wait_ns: int
    transfer_ns: int
    optimizer_ns: int
    between_ns: int
    step_ns: int
    overlapped_ns: int
    run_queue_ns: int
    gc_ns: int
    throttled_ns: int
    io_ns: int
    io_pressure_ns: int
    cpu_pressure_ns: int
    h2d_ns: int


@dataclass(frozen=True)
class SegmentRow:
    """One stretch of a rank's training thread in one phase (a `Phase`); `step` is -1 outside."""

    rank: int
    step: int
    phase: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class PauseRow:
    """One garbage collection of a millisecond or more, on the training thread."""

    rank: int
    step: int
    generation: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class NamedRow:
    """One span of the user's, or several short ones of a step: then `spent_ns` is their sum.

    `name` is a number of the rank's own; its text is in the rank's `names`.
    """

    rank: int
    step: int
    name: int
    begin_ns: int
    end_ns: int
    spent_ns: int
    spans: int


@dataclass(frozen=True)
class Tables:
    """The frames of a run. `clock.comparable` says whether waits mean anything across ranks."""

    steps: pd.DataFrame
    segments: pd.DataFrame
    calls: CallTable
    clock: CommonClock
    pauses: pd.DataFrame
    named: pd.DataFrame

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """All of `calls`, which of a large run takes more room than its records."""
        return self.calls.all()


def build_tables(run: Run) -> Tables:
    """Bring the ranks of a run onto one clock and into frames."""
    clock = common_clock(run.ranks)
    matched = Matched(recorded_calls(run.ranks, clock), run.ranks)

    rows = defaultdict[type, Gathered](lambda: Gathered(len(run.ranks)))
    for trace in run.ranks:
        rank = trace.info.rank
        own, own_clock = matched.recorded_of(rank), clock.ranks[rank]
        tiling = Tiling(trace, own, matched.last_arrivals(rank), own_clock)
        rows[CallTable].add({"step": narrow(tiling.step_at(own.arrival_ns))})
        rows[StepRow].add(tiling.steps())
        rows[SegmentRow].add(tiling.segments())
        rows[PauseRow].add(pause_columns(trace, own_clock))
        rows[NamedRow].add(named_columns(trace, own_clock, tiling.latest_ns))
    return Tables(
        _frame(StepRow, rows),
        _frame(SegmentRow, rows),
        CallTable(matched, rows[CallTable].columns()["step"]),
        clock,
        _frame(PauseRow, rows),
        _frame(NamedRow, rows),
    )


def _frame(row: type, rows: dict[type, Gathered]) -> pd.DataFrame:
    """A frame with exactly the columns of the row class, in their order."""
    columns = rows[row].columns()
    names = [field.name for field in fields(row)]
    if set(names) != set(columns):
        raise TypeError(f"{row.__name__}: columns differ: {set(names) ^ set(columns)}")
    return pd.DataFrame({name: columns[name] for name in names}, copy=False)
