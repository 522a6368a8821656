"""A run for other tools: a trace in Chrome's format, which Perfetto opens, and tables as CSV.

One process a rank, one thread for its training and one a line of collectives. Times are
microseconds from the run's first moment, on the common clock.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.ragged import Ints
from ddpdoctor.analysis.timeline import MOST_SLOTS, NOT_STEP, Calls, Spans, Timeline
from ddpdoctor.errors import DdpDoctorError
from ddpdoctor.events import Op, Phase
from ddpdoctor.sheets import SHEETS, as_csv

TRAINING: Final = 0  # thread number
FIRST_LINE: Final = 1  # of the collectives
MARKS: Final = FIRST_LINE + MOST_SLOTS
_US_PER_MS = 1e3
Event = dict[str, Any]


class CannotExport(DdpDoctorError):
    """The place to write to is taken, or cannot be written."""


def write_trace(timeline: Timeline, path: Path) -> None:
    """The whole run, packed where the name ends in .gz. Raises CannotExport."""
    try:
        with gzip.open(path, "wt", 6) if path.suffix == ".gz" else path.open("w") as file:
            stream_trace(timeline, file, 0.0, timeline.duration_ms, timeline.rows)
    except OSError as error:
        raise CannotExport(f"{path}: cannot be written ({error.strerror})") from error


def stream_trace(
    timeline: Timeline, file: IO[str], begin_ms: float, end_ms: float, rows: Ints
) -> None:
    """What of these rows overlaps the stretch, row after row: memory is that of one rank."""
    file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    separator = ""
    for event in _events(timeline, begin_ms, end_ms, rows):
        file.write(separator + json.dumps(event, separators=(",", ":")))
        separator = ",\n"
    file.write("\n]}\n")


def write_tables(analysis: Analysis, folder: Path) -> list[Path]:
    """One file a table that has rows. Raises CannotExport."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in SHEETS.items():
            sheet = make(analysis)
            if sheet.rows:
                path = folder / f"{name}.csv"
                path.write_text(as_csv(sheet))
                written.append(path)
    except OSError as error:
        raise CannotExport(f"{folder}: cannot be written ({error.strerror})") from error
    return written


def _events(timeline: Timeline, begin_ms: float, end_ms: float, rows: Ints) -> Iterator[Event]:
    for row in rows:
        rank = timeline.ranks[row]
        yield from _names(rank, timeline.hosts[row])
        spans, calls = timeline.window(begin_ms, end_ms, np.array([row]))
        yield from _span_events(spans, rank)
        yield from _call_events(calls, rank)
    marks = timeline.marks.within(begin_ms, end_ms)
    inside = np.isin(marks.rank, [timeline.ranks[row] for row in rows])
    for i in np.flatnonzero(inside):
        yield _complete(
            marks.names[marks.name[i]], int(marks.rank[i]), MARKS, marks.begin_ms[i],
            marks.end_ms[i] - marks.begin_ms[i], {},
        )  # fmt: skip


def _names(rank: int, host: str) -> Iterator[Event]:
    def meta(name: str, tid: int, args: dict[str, Any]) -> Event:
        return {"ph": "M", "name": name, "pid": rank, "tid": tid, "args": args}

    yield meta("process_name", 0, {"name": f"rank {rank} on {host}"})
    yield meta("process_sort_index", 0, {"sort_index": rank})
    yield meta("thread_name", TRAINING, {"name": "training"})
    for line in range(MOST_SLOTS):
        yield meta("thread_name", FIRST_LINE + line, {"name": f"collectives {line + 1}"})
    yield meta("thread_name", MARKS, {"name": "named spans and collections"})


def _span_events(spans: Spans, rank: int) -> Iterator[Event]:
    for i in range(len(spans.id)):
        sync = int(spans.sync[i])
        args = {} if sync == NOT_STEP else {"step": sync}
        yield _complete(
            Phase(int(spans.phase[i])).label, rank, TRAINING, spans.begin_ms[i],
            spans.end_ms[i] - spans.begin_ms[i], args,
        )  # fmt: skip


def _call_events(calls: Calls, rank: int) -> Iterator[Event]:
    op, bucket, nbytes, group = calls.op, calls.bucket, calls.nbytes, calls.group
    for i in range(len(calls.id)):
        args: dict[str, Any] = {
            "step": int(calls.sync[i]), "bytes": int(nbytes[i]), "group": int(group[i]),
            "number": int(calls.seq[i]),
        }  # fmt: skip
        if calls.known[i]:
            args |= {"wait_ms": float(calls.wait_ms[i]), "last_rank": int(calls.last_rank[i])}
        name = Op(int(op[i])).label + (f" bucket {bucket[i]}" if bucket[i] >= 0 else "")
        line = FIRST_LINE + int(calls.slot[i])
        yield _complete(name, rank, line, calls.begin_ms[i], calls.length_ms[i], args)


def _complete(  # noqa: PLR0913  the fields of an event
    name: str, rank: int, tid: int, begin_ms: float, length_ms: float, args: dict[str, Any]
) -> Event:
    return {
        "ph": "X", "name": name, "pid": rank, "tid": tid, "ts": round(begin_ms * _US_PER_MS, 3),
        "dur": round(float(length_ms) * _US_PER_MS, 3), "args": args,
    }  # fmt: skip
