"""What a recorded rank wrote of its last collectives: the second source beside its stack."""

from __future__ import annotations

import time
from pathlib import Path

from ddpdoctor.errors import DdpDoctorError
from ddpdoctor.hang.snapshot import LastCollective


def last_collectives(record: str) -> tuple[LastCollective, ...]:
    """The newest numbered collective of each group, from the rank's own file, if it records."""
    from ddpdoctor.tracefile import read_rank  # numpy: only where a rank was recorded

    try:
        _, trace = read_rank(Path(record))
    except (DdpDoctorError, OSError):
        return ()
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
        since_s = (time.monotonic_ns() - int(last["begin_ns"])) / 1e9 if pending else None
        operation = Op(int(last["code"])).label if int(last["code"]) in set(Op) else "other"
        found.append(
            LastCollective(group.name, group.ranks, int(last["seq"]), operation, pending, since_s)
        )
    return tuple(found)
