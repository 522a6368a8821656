"""Which steps were recorded at all, where recording was switched on and off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddpdoctor.schedule import FIRST_STEP, Switch
from ddpdoctor.tracefile import Run
from ddpdoctor.wording import SHOWN, rank_list

Range = tuple[int, int | None]  # first and last step; None: to the end
ALL: Final[tuple[Range, ...]] = ((FIRST_STEP, None),)


def recorded(switches: Sequence[Switch]) -> tuple[Range, ...]:
    """The stretches of steps that one rank recorded."""
    found: list[Range] = []
    first: int | None = FIRST_STEP
    for switch in sorted(switches, key=lambda switch: switch.sync):
        if switch.on and first is None:
            first = switch.sync
        elif not switch.on and first is not None:
            if switch.sync > first:
                found.append((first, switch.sync - 1))
            first = None
    if first is not None:
        found.append((first, None))
    return tuple(found)


def recorded_notes(run: Run) -> tuple[str, ...]:
    """What the report says of it; nothing where every rank recorded all steps."""
    ranks_of: dict[tuple[Range, ...], list[int]] = {}
    for trace in run.ranks:
        ranks_of.setdefault(recorded(trace.switches), []).append(trace.info.rank)
    if set(ranks_of) == {ALL}:
        return ()
    return tuple(
        f"{_who(ranks, run)}recorded {_said(ranges)}; in the other steps recording was off"
        for ranges, ranks in ranks_of.items()
    )


def _who(ranks: list[int], run: Run) -> str:
    return "" if len(ranks) == len(run.ranks) else f"{rank_list(ranks)}: "


def _said(ranges: tuple[Range, ...]) -> str:
    if not ranges:
        return "no step"
    parts = [f"{first} to {last or 'the end'}" for first, last in ranges[:SHOWN]]
    more = f" and {len(ranges) - SHOWN} more stretches" if len(ranges) > SHOWN else ""
    return f"steps {', '.join(parts)}{more}"
