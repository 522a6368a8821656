"""torch's flight recorder as JSON: which collectives of a rank are pending. Foreign, so checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from ddpdoctor.events import Int64
from ddpdoctor.hang.snapshot import PendingEntry

MAX_PENDING: Final = 64
MAX_SIZES: Final = 8  # tensors of one entry, and dimensions of one tensor
_Short = Annotated[str, msgspec.Meta(max_length=200)]


@dataclass(frozen=True)
class _Entry:
    """One collective of torch's flight recorder; the names are torch's."""

    process_group: Annotated[list[_Short], msgspec.Meta(min_length=1, max_length=4)]
    collective_seq_id: Int64
    p2p_seq_id: Int64
    is_p2p: bool
    profiling_name: _Short
    input_sizes: list[list[Int64]]
    time_created_ns: Int64
    retired: bool
    state: _Short


@dataclass(frozen=True)
class _Dump:
    entries: list[_Entry] = field(default_factory=list)


def pending_in(answer: bytes) -> tuple[PendingEntry, ...] | None:
    """What the rank has issued and is not done; None where the answer does not tell."""
    try:
        dump = msgspec.json.decode(answer, type=_Dump)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not dump.entries:  # nothing was issued yet, or the flight recorder is switched off
        return None
    return tuple(_pending(dump))


def _pending(dump: _Dump) -> Iterator[PendingEntry]:
    now_ns = time.time_ns()
    pending = [entry for entry in dump.entries if not entry.retired]
    for entry in pending[-MAX_PENDING:]:
        yield PendingEntry(
            entry.process_group[0],
            max(0, (entry.p2p_seq_id if entry.is_p2p else entry.collective_seq_id) - 1),
            entry.profiling_name.rpartition(":")[2],
            tuple(tuple(size[:MAX_SIZES]) for size in entry.input_sizes[:MAX_SIZES]),
            entry.state,
            max(0.0, (now_ns - entry.time_created_ns) / 1e9),
        )
