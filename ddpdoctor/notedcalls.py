"""What the ranks' own calls of init_process_group tell of those that did not come back well."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice
from typing import Final

from ddpdoctor.findings import Evidence
from ddpdoctor.launchfacts import MOST_RANKS, LaunchFacts, Outcome, Process
from ddpdoctor.wording import SHOWN

STARTING_S: Final = 15.0  # ranks that load torch from a slow disk come one after another
_WAITED: Final = re.compile(  # what a rank says that waited for others, or lost them
    r"(?i)timed? ?out|timeout|connection (was )?(refused|reset|closed|aborted)|broken pipe|"
    r"failed to connect|connect\w* failed"
)
_FROM_OUTSIDE: Final = ("KeyboardInterrupt", "SignalException")
_NOT_BACK: Final = {
    Outcome.WAITS: "has not come back",
    Outcome.ENDED: "was ended before it came back",
}


class Why(StrEnum):
    """Why ranks are apart, as far as their own calls tell."""

    FAILED = "failed"  # of some the call raised, and not for want of the others
    NOT_CALLED = "not called"  # some ranks never called it
    NOT_MET = "not met"  # all called it, and waited in vain
    INTERRUPTED = "interrupted"  # the job was ended from outside
    STARTING = "starting"  # they may be about to meet
    MISCOUNTED = "miscounted"  # ranks come twice (DD401), or there are others than said (DD403)


def why_apart(launch: LaunchFacts) -> Why | None:
    """None where all have joined."""
    apart = launch.apart
    if not apart:
        return None
    if _is_miscounted(launch):
        return Why.MISCOUNTED
    if failed_by_themselves(apart):
        return Why.FAILED
    calls = [process.joining for process in apart if process.joining is not None]
    if any(call.error in _FROM_OUTSIDE for call in calls):
        return Why.INTERRUPTED
    failed = any(call.outcome is Outcome.FAILED for call in calls)
    waits = any(call.outcome is Outcome.WAITS for call in calls)
    waited_s = launch.rendezvous.waited_s if launch.rendezvous is not None else 0.0
    if not failed and waited_s < STARTING_S and (waits or not launch.missing):
        return Why.STARTING
    return Why.NOT_CALLED if launch.missing else Why.NOT_MET


def _is_miscounted(launch: LaunchFacts) -> bool:
    twice = any(len(processes) > 1 for processes in launch.ranks.values())
    sizes = {process.world_size for process in launch.processes}
    too_many = any((p.world_size or 0) > (p.started or MOST_RANKS) for p in launch.processes)
    return twice or len(sizes) > 1 or (too_many and bool(launch.missing))


def failed_by_themselves(apart: Iterable[Process]) -> list[Process]:
    """Those whose call raised something else than that nobody came."""
    return [
        process
        for process in apart
        if process.joining is not None
        and process.joining.outcome is Outcome.FAILED
        and not _WAITED.search(process.joining.message)
    ]


def ends(processes: Iterable[Process]) -> tuple[Evidence, ...]:
    """How the calls of the first of them ended."""
    return tuple(islice(_ends(processes), SHOWN))


def _ends(processes: Iterable[Process]) -> Iterator[Evidence]:
    for process in processes:
        call = process.joining
        if call is not None:
            said = _NOT_BACK.get(call.outcome, f"{call.error}: {call.message}")
            yield Evidence(f"{process.label} (pid {process.pid})", said)
