"""A run as checked DataFrames on the common clock: steps, segments, collectives.

Each frame is built from one row class, whose field names are its columns. A segment is a
stretch of the training thread in one phase; the segments of a rank tile the steps that were
recorded in detail, and WAIT and TRANSFER are already told apart in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ddpdoctor.clocks import CommonClock, common_clock
from ddpdoctor.matching import match
from ddpdoctor.parts import named_columns, pause_columns
from ddpdoctor.tiling import STEP_PHASES, Tiling
from ddpdoctor.tracefile import Run

__all__ = ["STEP_PHASES", "Tables", "build_tables"]

Columns = Mapping[str, npt.NDArray[Any]]


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
class CollectiveRow:
    """One collective on one rank. Times that are not known are -1.

    `complete` says that every rank of the group was seen to arrive. `last_rank` arrived last;
    `caused_ns` is last minus second-last arrival.
    """

    rank: int
    group: int
    seq: int
    op: int
    flags: int
    bucket: int
    step: int
    sync: int
    site: int
    nbytes: int
    arrival_ns: int
    issued_ns: int
    completion_ns: int
    first_arrival_ns: int
    last_arrival_ns: int
    last_rank: int
    caused_ns: int
    complete: bool
    wait_ns: int
    queue_ns: int
    transfer_ns: int


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
    collectives: pd.DataFrame
    clock: CommonClock
    pauses: pd.DataFrame
    named: pd.DataFrame


def build_tables(run: Run) -> Tables:
    """Bring the ranks of a run onto one clock and into frames."""
    clock = common_clock(run.ranks)
    matched = match(run.ranks, clock)
    parts: dict[type, list[Columns]] = {
        row: [] for row in (StepRow, SegmentRow, PauseRow, NamedRow)
    }
    for trace in run.ranks:
        rank = trace.info.rank
        own = matched.of_rank(rank)
        tiling = Tiling(trace, own, clock.ranks[rank])
        parts[SegmentRow].append(tiling.segments())
        parts[StepRow].append(tiling.steps())
        parts[PauseRow].append(pause_columns(trace, clock.ranks[rank]))
        parts[NamedRow].append(named_columns(trace, clock.ranks[rank], tiling.latest_ns))
        own.step[:] = tiling.step_at(own.arrival_ns)
    return Tables(
        _joined(StepRow, parts.pop(StepRow)),
        _joined(SegmentRow, parts.pop(SegmentRow)),
        _frame(CollectiveRow, matched.columns()),
        clock,
        _joined(PauseRow, parts.pop(PauseRow)),
        _joined(NamedRow, parts.pop(NamedRow)),
    )


def _joined(row: type, parts: list[Columns]) -> pd.DataFrame:
    """One frame of the columns of all ranks, one rank after the other."""
    return _frame(row, {name: np.concatenate([p[name] for p in parts]) for name in parts[0]})


def _frame(row: type, columns: Columns) -> pd.DataFrame:
    """A frame with exactly the columns of the row class, in their order."""
    names = [field.name for field in fields(row)]
    if set(names) != set(columns):
        raise TypeError(f"{row.__name__}: columns differ: {set(names) ^ set(columns)}")
    return pd.DataFrame({name: columns[name] for name in names}, copy=False)
