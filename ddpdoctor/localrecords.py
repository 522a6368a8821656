"""Notes in a run folder of ranks that record on their own host, and copy it here at their end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ddpdoctor.events import RankNumber
from ddpdoctor.regular import read_up_to

SUFFIX: Final = ".local.json"  # rank00003.local.json, until the copy is made
_MAX_BYTES: Final = 16 * 1024
_MOST_NAMED: Final = 8


@dataclass(frozen=True)
class LocalRecord:
    """Where a rank writes while it runs. Only to be told: it is never opened by what is read."""

    rank: RankNumber
    host: Annotated[str, Meta(max_length=255)]
    path: Annotated[str, Meta(max_length=4096)]


def read_local_records(folder: Path) -> list[LocalRecord]:
    """The notes that can be read."""
    found = []
    for path in sorted(folder.glob(f"rank*{SUFFIX}")):
        try:
            found.append(msgspec.json.decode(read_up_to(path, _MAX_BYTES), type=LocalRecord))
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
            continue
    return found


def where_they_lie(folder: Path, present: Collection[int] = ()) -> str:
    """A sentence on the ranks whose records are not in the folder; empty without any."""
    away = [record for record in read_local_records(folder) if record.rank not in present]
    if not away:
        return ""
    named = ", ".join(f"{r.path} on {r.host} (rank {r.rank})" for r in away[:_MOST_NAMED])
    more = ", …" if len(away) > _MOST_NAMED else ""
    return (
        f"; while a rank runs, or when it was killed, its record is on its own host: {named}{more};"
        " copy it here with the .facts.jsonl beside it"
    )
