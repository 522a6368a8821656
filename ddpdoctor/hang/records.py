"""What a recorded rank wrote of itself: the second source beside its stack."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.errors import DdpDoctorError
from ddpdoctor.hang.snapshot import LastCollective, RankProcess

if TYPE_CHECKING:  # numpy: only where a rank was recorded
    from ddpdoctor.tracefile import RankTrace


def with_record(rank: RankProcess, record: str) -> RankProcess:
    """What the rank's own file adds, if there is one."""
    from ddpdoctor.tracefile import read_rank

    try:
        _, trace = read_rank(Path(record))
    except (DdpDoctorError, OSError):
        return rank
    last = collectives_of(trace, time.monotonic_ns())
    return replace(rank, collectives=last, settings=settings_of(trace))


def settings_of(trace: RankTrace) -> tuple[tuple[str, str], ...]:
    """The arguments of DistributedDataParallel for its first model."""
    models = trace.model.models
    return tuple(sorted(models[min(models)].arguments.items())) if models else ()


def collectives_of(trace: RankTrace, now_ns: int | None = None) -> tuple[LastCollective, ...]:
    """The newest numbered collective of each group; `now_ns` None: the rank is long gone."""
    if trace.switches and not trace.switches[-1].on:
        return ()  # recording is off: its newest collective lies behind it
    from ddpdoctor.events import Flag, Kind, Op

    detail = trace.detail
    numbered = detail[
        (detail["kind"] == Kind.COLLECTIVE) & (detail["flags"] & Flag.POINT_TO_POINT == 0)
    ]
    found = []
    for index, group in enumerate(trace.groups):
        own = numbered[numbered["group"] == index]
        if not len(own):
            continue
        last = own[own["seq"].argmax()]
        pending = not int(last["end_ns"])
        known = pending and now_ns is not None
        since_s = ((now_ns or 0) - int(last["begin_ns"])) / 1e9 if known else None
        operation = Op(int(last["code"])).label if int(last["code"]) in set(Op) else "other"
        found.append(
            LastCollective(group.name, group.ranks, int(last["seq"]), operation, pending, since_s)
        )
    return tuple(found)
