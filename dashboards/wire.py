"""Columns of numbers as one binary body: what the browser's canvas reads without parsing.

Little-endian: u32 length of a JSON head, the head, then each column at a multiple of 8 bytes.
The head names each column with its type and offset.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from ddpdoctor.analysis.grid import StepSeries
from ddpdoctor.analysis.marked import Marks
from ddpdoctor.analysis.timeline import Calls, Spans
from ddpdoctor.events import Phase

Column = npt.NDArray[np.generic]
ALIGN: Final = 8


def encode(columns: Mapping[str, Column]) -> bytes:
    blocks: list[bytes] = []
    entries: list[dict[str, str | int]] = []
    offset = 0
    for name, values in columns.items():
        block = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
        entries.append(
            {"name": name, "type": values.dtype.str[1:], "offset": offset, "count": values.size}
        )
        blocks.append(_padded(block))
        offset += len(blocks[-1])
    head = json.dumps(entries).encode()
    head += b" " * (-(len(head) + 4) % ALIGN)
    return struct.pack("<I", len(head)) + head + b"".join(blocks)


def _padded(block: bytes) -> bytes:
    return block + bytes(-len(block) % ALIGN)


def window_columns(spans: Spans, calls: Calls) -> dict[str, Column]:
    """Spans and collectives of a stretch of time."""
    return {
        "span_id": spans.id.astype(np.uint32),
        "span_rank": spans.rank.astype(np.uint32),
        "span_sync": spans.sync.astype(np.int32),
        "span_phase": spans.phase.astype(np.uint8),
        "span_begin": spans.begin_ms,
        "span_end": spans.end_ms,
        "call_id": calls.id.astype(np.uint32),
        "call_rank": calls.rank.astype(np.uint32),
        "call_sync": calls.sync.astype(np.int32),
        "call_group": calls.group.astype(np.uint16),
        "call_seq": calls.seq.astype(np.uint32),
        "call_op": calls.op.astype(np.uint8),
        "call_bucket": calls.bucket.astype(np.int16),
        "call_bytes": calls.nbytes.astype(np.float64),
        "call_begin": calls.begin_ms,
        "call_last": calls.last_ms,
        "call_end": calls.end_ms,
        "call_timed": calls.timed.astype(np.uint8),
        "call_last_rank": calls.last_rank.astype(np.int32),
        "call_known": calls.known.astype(np.uint8),
        "call_slot": calls.slot.astype(np.uint8),
        "call_slots": calls.slots.astype(np.uint8),
    }


def mark_columns(marks: Marks) -> dict[str, Column]:
    """Named spans and long collections of a stretch of time."""
    return {
        "mark_rank": marks.rank.astype(np.uint32),
        "mark_name": marks.name.astype(np.uint32),
        "mark_begin": marks.begin_ms,
        "mark_end": marks.end_ms,
    }


def step_columns(series: StepSeries) -> dict[str, Column]:
    """The steps of the run, for the rulers and the strip above the timeline."""
    blocked = [series.phases.index(p) for p in (Phase.WAIT, Phase.BLOCKED) if p in series.phases]
    return {
        "step_sync": series.sync.astype(np.int32),
        "step_begin": series.begin_ms,
        "step_end": series.end_ms,
        "step_ms": series.step_ms,
        "step_wait": series.phase_ms[blocked[0]],
        "step_input": series.phase_ms[series.phases.index(Phase.INPUT)],
    }
