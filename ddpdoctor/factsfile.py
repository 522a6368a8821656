"""The facts beside a rank file, one JSON object a line. Foreign, so a bad line becomes a note."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from ddpdoctor.deliveries import Evaluated, LoaderEpoch, RandomStates, StreamedSamples
from ddpdoctor.events import (
    ClockOffset,
    Count,
    DrawnIndices,
    End,
    GroupInfo,
    HotLine,
    LoaderInfo,
    Part,
    Site,
    SpanName,
    SpanNumber,
    Stall,
)
from ddpdoctor.launchfacts import Process
from ddpdoctor.modelevents import MODEL_FACTS, ModelFacts
from ddpdoctor.processfacts import decoded
from ddpdoctor.regular import read_last, read_up_to
from ddpdoctor.schedule import Switch

Fact = TypeVar("Fact")

MAX_FACTS_BYTES: Final = 64 * 1024 * 1024
MOST_OF_A_KIND: Final = 20_000  # facts that are kept, of those of which each line is one more
END_BYTES: Final = 64 * 1024  # of a file, in which a rank that ended by itself says so
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

    groups: list[GroupInfo] = field(default_factory=list)
    sites: dict[int, Site] = field(default_factory=dict)
    hot_lines: tuple[HotLine, ...] = ()
    loaders: dict[int, LoaderInfo] = field(default_factory=dict)
    drawn: dict[tuple[int, int], DrawnIndices] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cost: RecorderCost | None = None
    clocks: list[ClockOffset] = field(default_factory=list)
    stall: Stall | None = None
    end: End | None = None
    switches: list[Switch] = field(default_factory=list)
    ddp_groups: list[GroupInfo] = field(default_factory=list)
    parts: frozenset[Part] = frozenset({Part.RUN_QUEUE})  # what recordings without this fact had
    names: dict[int, str] = field(default_factory=dict)
    model: ModelFacts = field(default_factory=ModelFacts)
    epochs: dict[tuple[int, int], LoaderEpoch] = field(default_factory=dict)
    streamed: dict[tuple[int, int], StreamedSamples] = field(default_factory=dict)
    random_states: list[RandomStates] = field(default_factory=list)
    evaluated: list[Evaluated] = field(default_factory=list)
    process: Process | None = None


@dataclass(frozen=True)
class _FactLine:
    fact: str
    data: msgspec.Raw


@dataclass(frozen=True)
class _NumberedSite:
    id: Count
    site: Site


@dataclass(frozen=True)
class _NumberedName:
    id: SpanNumber
    name: SpanName


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


def read_end(path: Path) -> End | None:
    """How the rank ended, from the last lines of its facts; None where they do not tell."""
    try:
        lines = read_last(path, END_BYTES).split(b"\n")
    except OSError:
        return None
    last = Facts()
    for line in lines:
        if b'"end"' in line:
            with suppress(*UNREADABLE):  # it may be cut off
                _take_fact(last, line)
    return last.end


def _take_fact(facts: Facts, line: bytes) -> None:
    """Take in one line."""
    fact = msgspec.json.decode(line, type=_FactLine)
    if fact.fact in _REPLACED:
        field_name, kind = _REPLACED[fact.fact]
        setattr(facts, field_name, _decode(fact, kind))
    elif fact.fact in _COLLECTED:
        field_name, kind = _COLLECTED[fact.fact]
        collected: list[Any] = getattr(facts, field_name)
        if len(collected) < MOST_OF_A_KIND:
            collected.append(_decode(fact, kind))
    elif fact.fact in _KEYED:
        _KEYED[fact.fact](facts, fact)
    elif fact.fact in MODEL_FACTS:
        facts.model.add(_decode(fact, MODEL_FACTS[fact.fact]))


def _take_site(facts: Facts, fact: _FactLine) -> None:
    numbered = _decode(fact, _NumberedSite)
    facts.sites[numbered.id] = numbered.site


def _take_name(facts: Facts, fact: _FactLine) -> None:
    named = _decode(fact, _NumberedName)
    facts.names[named.id] = named.name


def _take_loader(facts: Facts, fact: _FactLine) -> None:
    loader = _decode(fact, LoaderInfo)
    facts.loaders[loader.loader] = loader


def _take_drawn(facts: Facts, fact: _FactLine) -> None:
    drawn = _decode(fact, DrawnIndices)
    lengths = {len(drawn.contents), len(drawn.levels or drawn.indices)}
    if lengths != {len(drawn.indices)}:
        raise ValueError("as many contents and levels as indices are expected")
    facts.drawn[drawn.loader, drawn.epoch] = drawn


def _take_epoch(facts: Facts, fact: _FactLine) -> None:
    epoch = _decode(fact, LoaderEpoch)
    facts.epochs[epoch.loader, epoch.epoch] = epoch


def _take_streamed(facts: Facts, fact: _FactLine) -> None:
    streamed = _decode(fact, StreamedSamples)
    facts.streamed[streamed.loader, streamed.epoch] = streamed


def _take_process(facts: Facts, fact: _FactLine) -> None:
    facts.process = decoded(bytes(fact.data))
    if facts.process is None:
        raise ValueError("facts of a process that can be are expected")


# Fields of Facts, and the type of what a line holds.
_REPLACED: Final[dict[str, tuple[str, Any]]] = {  # the last line counts
    "hot_lines": ("hot_lines", tuple[HotLine, ...]),
    "stall": ("stall", Stall | None),
    "end": ("end", End),
    "cost": ("cost", RecorderCost),
    "parts": ("parts", frozenset[Part]),
}
_COLLECTED: Final[dict[str, tuple[str, Any]]] = {  # each line is one more
    "group": ("groups", GroupInfo),
    "ddp": ("ddp_groups", GroupInfo),
    "clock": ("clocks", ClockOffset),
    "switch": ("switches", Switch),
    "random": ("random_states", RandomStates),
    "evaluated": ("evaluated", Evaluated),
    "note": ("notes", str),
}
_KEYED: Final[dict[str, Callable[[Facts, _FactLine], None]]] = {  # the last line of a number
    "site": _take_site,
    "name": _take_name,
    "loader": _take_loader,
    "drawn": _take_drawn,
    "epoch": _take_epoch,
    "streamed": _take_streamed,
    "process": _take_process,
}


def _decode(fact: _FactLine, kind: type[Fact]) -> Fact:
    return msgspec.json.decode(fact.data, type=kind)
