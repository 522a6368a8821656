"""The facts beside a rank file, one JSON object a line. Foreign, so a bad line becomes a note."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from ddpdoctor.events import (
    ClockOffset,
    Count,
    DrawnIndices,
    GroupInfo,
    HotLine,
    LoaderInfo,
    Site,
    Stall,
)
from ddpdoctor.regular import read_up_to

Fact = TypeVar("Fact")

MAX_FACTS_BYTES: Final = 64 * 1024 * 1024
MOST_CLOCKS: Final = 10_000  # measurements; one every ten minutes for two months
MOST_NOTES: Final = 20  # of lines that cannot be read; the rest is counted
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)  # what decoding may raise


@dataclass(frozen=True)
class RecorderCost:
    """What the recorder measured of itself on one rank: its own CPU time within the hooks."""

    hooks_ns: Count
    steps: Count


@dataclass
class Facts:
    """All facts of one rank."""

    groups: tuple[GroupInfo, ...] = ()
    sites: dict[int, Site] = field(default_factory=dict)
    hot_lines: tuple[HotLine, ...] = ()
    loaders: dict[int, LoaderInfo] = field(default_factory=dict)
    drawn: dict[tuple[int, int], DrawnIndices] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cost: RecorderCost | None = None
    clocks: list[ClockOffset] = field(default_factory=list)
    stall: Stall | None = None
    ddp_groups: list[GroupInfo] = field(default_factory=list)


@dataclass(frozen=True)
class _FactLine:
    fact: str
    data: msgspec.Raw


@dataclass(frozen=True)
class _NumberedSite:
    id: Count
    site: Site


def read_facts(path: Path) -> Facts:
    """The facts in a file; none where there is no file."""
    facts = Facts()
    try:
        lines = read_up_to(path, MAX_FACTS_BYTES).split(b"\n")
    except FileNotFoundError:
        return facts
    except OSError as error:
        facts.notes.append(f"{path.name}: cannot be read ({error.strerror})")
        return facts
    bad: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            _take_fact(facts, line)
        except UNREADABLE as error:
            if number < len(lines):  # the last line may be cut off in a run that was killed
                bad.append(f"{path.name}:{number}: cannot be read: {error}")
    facts.notes[:0] = bad[:MOST_NOTES]
    if len(bad) > MOST_NOTES:
        facts.notes.append(f"{path.name}: {len(bad) - MOST_NOTES} more lines cannot be read")
    return facts


def _take_fact(facts: Facts, line: bytes) -> None:
    """Take in one line. A later line of the same kind replaces the earlier one."""
    fact = msgspec.json.decode(line, type=_FactLine)
    if fact.fact == "group":
        facts.groups += (_decode(fact, GroupInfo),)
    elif fact.fact == "ddp":
        facts.ddp_groups.append(_decode(fact, GroupInfo))
    elif fact.fact == "site":
        numbered = _decode(fact, _NumberedSite)
        facts.sites[numbered.id] = numbered.site
    elif fact.fact == "hot_lines":
        facts.hot_lines = _decode(fact, tuple[HotLine, ...])
    elif fact.fact == "loader":
        loader = _decode(fact, LoaderInfo)
        facts.loaders[loader.loader] = loader
    elif fact.fact == "drawn":
        drawn = _decode(fact, DrawnIndices)
        lengths = {len(drawn.contents), len(drawn.levels or drawn.indices)}
        if lengths != {len(drawn.indices)}:
            raise ValueError("as many contents and levels as indices are expected")
        facts.drawn[drawn.loader, drawn.epoch] = drawn
    elif fact.fact == "note":
        facts.notes.append(_decode(fact, str))
    elif fact.fact == "clock":
        offset = _decode(fact, ClockOffset)
        if len(facts.clocks) < MOST_CLOCKS:
            facts.clocks.append(offset)
    elif fact.fact == "stall":
        facts.stall = msgspec.json.decode(fact.data, type=Stall | None)
    elif fact.fact == "cost":
        facts.cost = _decode(fact, RecorderCost)


def _decode(fact: _FactLine, kind: type[Fact]) -> Fact:
    return msgspec.json.decode(fact.data, type=kind)
