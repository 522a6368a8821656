"""Findings on dumps: the sentences, the evidence and the places that the checks share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.hang import describe
from ddpdoctor.hang.calls import Call, RankCalls
from ddpdoctor.hang.situation import Seen
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.hang.standing import Standing
from ddpdoctor.wording import rank_list

MOST_TOLD = 12  # ranks of which the evidence says where they are; a thousand say the same


def finding(  # noqa: PLR0913  the parts of a finding
    scene: Standing,
    culprits: Sequence[int],
    message: str,
    fix: str,
    confidence: Confidence = Confidence.LIKELY,
    shown: Mapping[int, Call | None] | None = None,
) -> Finding:
    """An error with what every finding on dumps tells.

    `shown` are ranks to tell of first, each with the call whose line is to be shown; by default
    the culprits with what they are in, or made last.
    """
    first = shown or {rank: _newest(scene, rank) for rank in culprits}
    blamed = frozenset(culprits)
    return Finding(
        severity=Severity.ERROR,
        confidence=confidence,
        message=message,
        fix=fix,
        culprits=tuple(culprits),
        victims=tuple(rank for rank in scene.waiting if rank not in blamed),
        evidence=tuple(_evidence(scene, tuple(first))),
        where=tuple(
            Location(rank, call.site.file, call.site.line, call.site.function)
            for rank, call in islice(first.items(), MOST_TOLD)
            if call and call.site
        ),
    )


def while_it_hangs(told: Finding, snapshot: HangSnapshot, ranks: Sequence[Seen]) -> Finding:
    """A finding on what ranks answered, with the host, and where their stacks show them."""
    return replace(
        told,
        hosts=describe.hosts(snapshot),
        evidence=(describe.looks(snapshot), *told.evidence),
        where=describe.locations(ranks),
    )


def calls_of(scene: Standing, ranks: Sequence[int]) -> str:
    """In what ranks wait: the different calls of the first few, joined by `or`."""
    texts = dict.fromkeys(text(scene, call) for rank in ranks if (call := scene.front(rank)))
    shown = list(texts)[:3]
    return " or ".join(shown) + (", …" if len(texts) > len(shown) else "")


def text(scene: Standing, call: Call) -> str:
    if call.point_to_point:
        return call.text
    return call.text.replace(f"group {call.group})", f"{scene.dumps.group_text(call.group)})", 1)


def direct_victims(scene: Standing, culprits: Sequence[int]) -> tuple[int, ...]:
    """Ranks that wait for these themselves, not only for others that do."""
    wanted = set(culprits)
    return tuple(rank for rank in scene.waiting if scene.awaits[rank] & wanted)


def _evidence(scene: Standing, first: Sequence[int]) -> Iterator[Evidence]:
    told = frozenset(first)
    others = [rank for rank in scene.waiting if rank not in told]
    for rank in [*first, *others][:MOST_TOLD]:
        yield Evidence(f"rank {rank}", _said_of(scene, rank))
    if len(first) + len(others) > MOST_TOLD:
        yield Evidence("more ranks that wait", len(first) + len(others) - MOST_TOLD)
    yield Evidence(
        "flight recorders read", f"{len(scene.dumps.ranks)} of {scene.dumps.world_size} ranks"
    )


def _said_of(scene: Standing, rank: int) -> str:
    calls = scene.dumps.by_rank.get(rank)
    if calls is None:
        reason = next((lost.reason for lost in scene.dumps.lost if lost.rank == rank), None)
        return reason or "left no dump"
    front = calls.front
    if front is None:
        return f"nothing is pending; {last_call(calls)}"
    state = "" if front.state == "scheduled" else f", {front.state}"
    awaited = sorted(scene.awaits[rank])
    waits = f", waits for {rank_list(awaited)}" if awaited else ", waits for no other rank"
    passed = scene.passed_by(front) if not awaited and not front.point_to_point else ()
    if passed:
        waits = f"; {rank_list(passed)} {'has' if len(passed) == 1 else 'have'} completed it"
    return f"in {text(scene, front)}{state}{waits}"


def last_call(calls: RankCalls) -> str:
    """The newest call that a rank made."""
    return f"its last call was {calls.calls[-1].text}" if calls.calls else "its dump holds no call"


def _newest(scene: Standing, rank: int) -> Call | None:
    calls = scene.dumps.by_rank.get(rank)
    return (calls.front or next(iter(calls.calls[-1:]), None)) if calls else None
