"""DD904 collective-mismatch: the ranks wait in different collectives.

What it measures
    For each rank the call that it waits in and the line that made it; for recorded ranks also the
    sequence number within the group. In dumps of torch's flight recorder: operation, sizes and
    types of the calls with the same number, also of those that are done. In a log: what the ranks'
    watchdogs gave up, and what TORCH_DISTRIBUTED_DEBUG=DETAIL found. In a record that nobody
    closed: the last call of each rank, if all have the same number, else where each had stood
    still for five seconds.

Why it matters
    Collectives pair up by their order. When one rank makes a call that the others do not make, all
    of them wait, each for the others.

What to do
    Make the same collectives in the same order on all ranks: look for a call under `if rank == 0`,
    an early return before it, an evaluation through the DDP model (it broadcasts buffers) on one
    rank only, or metrics that only some ranks reduce.

When it is wrong
    Stacks show where the ranks are, not which of them went the wrong way: with as many ranks in the
    one call as in the other no rank is named. A pair may also be the late result of a call that was
    skipped earlier; a recorded run shows where.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddpdoctor.checks import NotEnoughData, dump_check, hang_check, log_check, trace_check
from ddpdoctor.findings import Confidence, Finding, Location, Severity
from ddpdoctor.hang import describe, describe_calls, describe_log
from ddpdoctor.hang.agreement import Mismatch, Party
from ddpdoctor.hang.alike import explained
from ddpdoctor.hang.arguments import all_on_one_side, roots, told_apart
from ddpdoctor.hang.joblog import Failure, JobLog
from ddpdoctor.hang.joining import awaits_others, makes_group
from ddpdoctor.hang.order import behind, crossed, misnamed
from ddpdoctor.hang.situation import (
    Kind,
    Seen,
    Situation,
    mismatch_told,
    numbers,
    shift_told,
    situation,
)
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.hang.standing import Standing
from ddpdoctor.hang.whowaited import who_waited
from ddpdoctor.hang.wrapping import unwrapped
from ddpdoctor.wording import rank_list

if TYPE_CHECKING:  # a hang check loads no pandas
    from ddpdoctor.analysis.model import Analysis, MixedCall


@hang_check("DD904", "collective-mismatch")
def collective_mismatch(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    if (
        shift_told(snapshot)
        or crossed(snapshot)
        or misnamed(snapshot)
        or awaits_others(snapshot)
        or makes_group(snapshot)
        or explained(snapshot)
        or unwrapped(snapshot)
    ):
        return  # DD905, DD911, DD407, DD404, DD405 and DD406 know more
    if scene.kind not in (Kind.DIFFERENT_CALLS, Kind.SAME_CALL) or scene.leavers():
        return
    mismatch = mismatch_told(snapshot)
    if mismatch and snapshot.told:
        told = replace(_told(snapshot.told, mismatch), fix=_fix(scene.waiting))
        yield describe_calls.while_it_hangs(told, snapshot, scene.waiting)
        return
    if scene.kind is Kind.SAME_CALL:
        if told_apart(snapshot):
            yield _of_one_line(snapshot, scene)
        return
    groups = _by_call(scene.waiting)
    held = behind(snapshot)
    late = tuple(seen for seen in scene.waiting if seen.number in held)
    culprits = late or _minority(groups) or _alone(groups)
    shown = culprits or scene.waiting
    yield Finding(
        severity=Severity.ERROR,
        confidence=_confidence(late, culprits),
        message="the ranks wait in different collectives: "
        + "; ".join(f"{describe.names(ranks)} in {describe.calls(ranks[:1])}" for ranks in groups),
        fix=_fix(scene.waiting),
        culprits=numbers(culprits),
        victims=describe.victims(scene, culprits),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *describe.conditions(scene.waiting),
            *describe.records(scene.waiting),
            *describe.states(scene.all),
        ),
        where=describe.locations(shown),
    )


def _of_one_line(snapshot: HangSnapshot, scene: Situation) -> Finding:
    """All in one call by the line, and in different ones by what they told torch."""
    call, by_root = scene.waiting[0].place.call, roots(scene)
    word = "to" if call in ("send", "reduce", "gather") else "from"
    apart = "; ".join(
        f"{rank_list(own)} {call} {word} rank {root}" for root, own in by_root.items()
    )
    line = describe.calls(scene.waiting[:1])
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=f"the ranks are all in {line}, and these calls do not belong together"
        + (f": {apart}" if apart else ""),
        fix=_BOTH_AT_ONCE if all_on_one_side(scene) else _ORDER,
        victims=numbers(scene.waiting),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *describe.records(scene.waiting),
            *describe.states(scene.all),
        ),
        where=describe.locations(scene.waiting),
    )


def _by_call(waiting: tuple[Seen, ...]) -> list[tuple[Seen, ...]]:
    groups: dict[str, list[Seen]] = defaultdict(list)
    for seen in waiting:
        groups[describe.calls([seen])].append(seen)
    return [tuple(group) for group in groups.values()]


def _minority(groups: list[tuple[Seen, ...]]) -> tuple[Seen, ...]:
    """The ranks that differ from a clear majority; none where there is no such majority."""
    total = sum(len(group) for group in groups)
    largest = max(groups, key=len)
    if 2 * len(largest) <= total:
        return ()
    return tuple(seen for group in groups if group is not largest for seen in group)


def _alone(groups: list[tuple[Seen, ...]]) -> tuple[Seen, ...]:
    """Of two equals, the ranks whose call is within an `if` that asks for the rank."""
    by_rank = [group for group in groups if all(map(describe.is_for_some_ranks, group))]
    return by_rank[0] if len(by_rank) == 1 < len(groups) else ()


def _confidence(late: tuple[Seen, ...], culprits: tuple[Seen, ...]) -> Confidence:
    if late:
        return Confidence.LIKELY
    return Confidence.POSSIBLE if culprits else Confidence.LIKELY


_SAME_CALLS = (
    "All ranks must make the same collectives in the same order: take the call out of "
    "`if rank == 0:`, or let the other ranks make it too. Reduce decisions that differ between "
    "ranks first: `dist.all_reduce(flag, op=dist.ReduceOp.MAX)`."
)
_ORDER = (
    "Make these calls in the same order on all ranks: go over a sorted list, not over a set or "
    "what each rank found on its own, and name the same root on all of them."
)
_BOTH_AT_ONCE = (
    "Each waits for the other: let one of the two send first, or make both calls at once by "
    "`dist.batch_isend_irecv`."
)


def _fix(waiting: tuple[Seen, ...]) -> str:
    if all(seen.place.call in ("send", "recv") for seen in waiting):
        return _BOTH_AT_ONCE
    if any(seen.place.call == "forward" for seen in waiting):
        return (
            "A forward through the DDP model broadcasts its buffers. Where one rank evaluates "
            "alone, let it call `model.module(x)`; otherwise let all ranks run this forward."
        )
    return _SAME_CALLS


@dump_check("DD904", "collective-mismatch")
def collective_mismatch_in_dumps(scene: Standing) -> Iterator[Finding]:
    if scene.mismatch:
        yield _told(scene, scene.mismatch)
    elif scene.circle and all(_is_between_two(scene, rank) for rank in scene.circle):
        yield describe_calls.finding(
            scene,
            scene.circle,
            "each waits for the next, and the last for the first: "
            + "; ".join(
                f"rank {rank} in {describe_calls.calls_of(scene, [rank])}"
                for rank in scene.circle[: describe_calls.MOST_TOLD]
            ),
            _BOTH_AT_ONCE,
        )


def _told(scene: Standing, mismatch: Mismatch) -> Finding:
    parties = mismatch.parties
    call = parties[0].call
    return describe_calls.finding(
        scene,
        mismatch.culprits,
        f"the ranks made different calls as number {call.seq} of "
        f"{scene.dumps.group_text(call.group)}: {'; '.join(map(_made, parties))}",
        _SAME_CALLS,
        shown={party.ranks[0]: party.call for party in parties},
    )


def _is_between_two(scene: Standing, rank: int) -> bool:
    front = scene.front(rank)
    return front is not None and front.point_to_point


def _made(party: Party) -> str:
    call = party.call
    sizes = " and ".join("x".join(map(str, size)) or "a number" for size in call.inputs)
    of = f" of {sizes} {'/'.join(dict.fromkeys(call.dtypes))}".rstrip() if sizes else ""
    return f"{rank_list(party.ranks)} {call.name}{of}"


@log_check("DD904", "collective-mismatch")
def collective_mismatch_by_log(log: JobLog) -> Iterator[Finding]:
    waited = who_waited(log)
    if log.mismatched:
        told = log.mismatched[0]
        yield describe_log.finding(
            log, (),
            f"rank {told.rank} is in {told.call}, and rank {told.other} in {told.other_call}",
            _SAME_CALLS, Confidence.CERTAIN,
        )  # fmt: skip
    elif waited and waited.different and not log.first:
        yield describe_log.finding(
            log, (),
            "the ranks made different calls with one number: "
            + describe_log.timeouts(waited.calls),
            _SAME_CALLS, Confidence.LIKELY,
        )  # fmt: skip
    elif not log.first and not waited and not log.absent and not log.joined:
        yield from _by_tracebacks(log)


def _by_tracebacks(log: JobLog) -> Iterator[Finding]:
    """By the lines at which ranks gave up, or lost one that had: gloo names no number."""
    lost = log.lost
    if not any(each.gave_up for each in lost):
        return
    places: dict[tuple[str, int], list[Failure]] = defaultdict(list)
    for each in lost:
        if each.site:
            places[each.site.file, each.site.line].append(each)
    told = "; ".join(map(describe_log.stood, places.values()))
    if len(places) < 2:
        raise NotEnoughData(f"{told}; what the other ranks did then is not in this log: add theirs")
    most, *others = sorted(places.values(), key=len, reverse=True)
    clear = 2 * len(most) > len(lost) == len(log.ranks)
    culprits = sorted(each.rank for place in others for each in place) if clear else []
    yield describe_log.finding(
        log, culprits, f"the ranks waited in different calls: {told}", _SAME_CALLS,
        Confidence.LIKELY,
    )  # fmt: skip


@trace_check("DD904", "collective-mismatch")
def collective_mismatch_in_record(run: Analysis) -> Iterator[Finding]:
    """In a record that nobody closed: all ranks stand in one number, and not in one call."""
    from ddpdoctor.analysis.uneven import out_of_batches
    from ddpdoctor.lastlook import judged_by, last_look

    if run.early_end is not None or out_of_batches(run):
        return  # DD901 and DD304 say what came before
    seen = last_look(run.run)
    if seen is not None and (situation(seen).leavers() or misnamed(seen) or explained(seen)):
        return  # DD902, DD911, DD404 or DD405 does
    if seen is not None and not run.mixed:
        yield from judged_by(run, collective_mismatch)
    for mixed in run.mixed:
        most, *others = mixed.calls
        everyone = [rank for call in mixed.calls for rank in call.ranks]
        clear = 2 * len(most.ranks) > len(everyone)
        culprits = tuple(sorted(r for call in others for r in call.ranks)) if clear else ()
        shown = others if clear else mixed.calls
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            message=(
                f"the record ends with different calls as number {mixed.seq} of a group: "
                + "; ".join(map(_recorded, mixed.calls))
            ),
            fix=_SAME_CALLS,
            culprits=culprits,
            victims=tuple(sorted(rank for rank in everyone if rank not in culprits)),
            where=tuple(
                Location(call.ranks[0], call.site.file, call.site.line, call.site.function)
                for call in shown
                if call.site
            ),
        )


def _recorded(call: MixedCall) -> str:
    size = f" of {call.nbytes} bytes" if call.nbytes else ""
    at = f" at {call.site.file.rsplit('/', 1)[-1]}:{call.site.line}" if call.site else ""
    return f"{rank_list(call.ranks)} {call.op}{size}{at}"
