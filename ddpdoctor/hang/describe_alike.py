"""A finding on ranks that stand in other calls, since something of them is not alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.hang import describe
from ddpdoctor.hang.alike import Differing
from ddpdoctor.hang.situation import numbers, situation
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.wording import SHOWN, said_by_rank


def names(apart: Sequence[Differing]) -> str:
    return " and ".join(each.what for each in apart[:SHOWN])


def finding(
    snapshot: HangSnapshot,
    apart: Sequence[Differing],
    message: str,
    fix: str,
    more: Iterable[Evidence] = (),
) -> Finding:
    """The message is told where the ranks stand; `more` is evidence behind what differs."""
    scene, culprits = situation(snapshot), apart[0].culprits
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=f"{message}; they stand in {describe.calls(scene.all)}",
        fix=fix,
        culprits=culprits,
        victims=tuple(rank for rank in numbers(scene.all) if rank not in culprits),
        hosts=describe.hosts(snapshot),
        evidence=(
            *(Evidence(each.what, said_by_rank(each.values)) for each in apart[:SHOWN]),
            describe.looks(snapshot),
            *more,
            *describe.states(scene.all),
        ),
        where=describe.locations(scene.all),
    )
