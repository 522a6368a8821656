"""Imagined runs as files, with whatever in them a writer of bad will could put there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddpdoctor import events
from ddpdoctor.tracefile import RankTrace, Run

FIRST = events.HEADER_SPACE


def store(run: Run, folder: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """Write the rank files of a run, the header of each changed; facts are the groups alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for trace in run.ranks:
        store_rank(run, trace, folder / f"rank{trace.info.rank:05d}.ddt", change)
    return folder


def store_rank(
    run: Run,
    trace: RankTrace,
    path: Path,
    change: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    count = len(trace.detail)
    header: dict[str, Any] = {
        "run": asdict(run.info),
        "rank": asdict(trace.info),
        "closed": trace.closed,
        "ring": {"offset": FIRST, "records": 0},
        "detail": {"offset": FIRST, "records": count},
        "steps": {"offset": FIRST + count * events.DETAIL_RECORD.size, "records": 0},
    }
    if change is not None:
        change(header)
    raw = json.dumps(header).encode()
    preamble = events.PREAMBLE.pack(events.MAGIC, events.SCHEMA_VERSION, len(raw))
    path.write_bytes((preamble + raw).ljust(FIRST, b"\0") + trace.detail.tobytes())
    facts = [{"fact": "group", "data": asdict(group)} for group in trace.groups]
    facts += [{"fact": "note", "data": note} for note in trace.notes]
    lines = [json.dumps(fact) for fact in facts]
    path.with_suffix(".facts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
