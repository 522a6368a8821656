"""DD902 rank-left-loop: a rank is past the loop in which the others wait for it.

What it measures
    The calls of each rank's main thread, compared level by level: where two ranks part, whether the
    line of the one lies behind a loop in which the other still is, or whether it already takes the
    process group down. In a record of a job that was killed: the same calls, as each rank noted
    them with the loops around them when it had stood still for five seconds.

Why it matters
    DDP reduces gradients in every step, so a rank that makes fewer steps leaves the others waiting
    for ever; none of their error messages names it.

What to do
    Find out why the ranks counted differently: batches per rank (pad, drop_last=True, or the Join
    context), or a rank that decided alone to stop: reduce that decision first.

When it is wrong
    Where most ranks are past the loop, or the one inside is evaluating, the one inside is named as
    the odd one, and the confidence is `possible`: it makes a step too many, or evaluates alone
    through the DDP model. It is `possible`, too, where as many ranks left as stay outside a
    backward. Without the source file at hand, loops are not known and DD903 or DD904 speaks
    instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddpdoctor.checks import hang_check, trace_check
from ddpdoctor.findings import Confidence, Finding, Severity
from ddpdoctor.hang import describe
from ddpdoctor.hang.activity import Activity
from ddpdoctor.hang.position import loop_of, script_path
from ddpdoctor.hang.situation import Seen, numbers, shift_told, situation
from ddpdoctor.hang.snapshot import HangSnapshot

if TYPE_CHECKING:  # a hang check loads no pandas
    from ddpdoctor.analysis.model import Analysis

_EVALUATES = re.compile(r"eval|valid|test|predict|infer", re.IGNORECASE)


@hang_check("DD902", "rank-left-loop")
def rank_left_loop(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    left = scene.leavers() if not shift_told(snapshot) else ()
    inside = tuple(seen for seen in scene.waiting if seen not in left)
    if not left or not inside:
        return
    stays = _should_have_left(left, inside)
    culprits = inside if stays else left
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.POSSIBLE if stays else _confidence(left, inside),
        message=_message(left, inside),
        fix=_fix(inside, stays=stays),
        culprits=numbers(culprits),
        victims=numbers(tuple(seen for seen in scene.all if seen not in culprits)),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *describe.conditions(scene.all),
            *describe.records(scene.all),
            *describe.states(scene.all),
        ),
        where=describe.locations(culprits),
    )


def _should_have_left(left: tuple[Seen, ...], inside: tuple[Seen, ...]) -> bool:
    """Whether the odd ones are those inside: fewer, or evaluating where the others do not."""
    functions = (frame.function for seen in inside for frame in script_path(seen.process))
    evaluate = any(_EVALUATES.search(function) for function in functions)
    meant_alone = any(
        seen.place.call == "forward" or describe.is_for_some_ranks(seen) for seen in inside
    )  # else the loop holds a call for all ranks, and some ran out of it
    evaluate = evaluate and meant_alone
    return len(inside) < len(left) or (evaluate and len(inside) == len(left))


def _confidence(left: tuple[Seen, ...], inside: tuple[Seen, ...]) -> Confidence:
    gone = all(seen.place.activity is Activity.LEAVING for seen in left)
    if gone or _paired(left, inside):
        return Confidence.CERTAIN
    train = any(seen.place.call == "backward" for seen in inside)  # and do not evaluate alone
    return Confidence.LIKELY if train or len(left) < len(inside) else Confidence.POSSIBLE


def _paired(left: tuple[Seen, ...], inside: tuple[Seen, ...]) -> bool:
    """Whether the records pair both up: at one number of a group, in different operations."""
    ahead, back = _pending(left), _pending(inside)
    return any(one[:2] == other[:2] and one[2] != other[2] for one in ahead for other in back)


def _pending(ranks: Sequence[Seen]) -> set[tuple[str, int, str]]:
    return {
        (last.group, last.seq, last.op)
        for seen in ranks
        for last in seen.process.collectives
        if last.pending
    }


def _message(left: tuple[Seen, ...], inside: tuple[Seen, ...]) -> str:
    found = loop_of(inside[0].process)
    loop = "the loop"
    if found is not None:
        frame, span = found
        loop = f"the loop at {frame.file.rsplit('/', 1)[-1]}:{span.begin}-{span.end}"
    return (
        f"{describe.names(left)} {describe.verb(left, 'has', 'have')} left {loop} and "
        f"{describe.doing(left[0], plural=len(left) > 1)}; {describe.names(inside)} "
        f"{describe.verb(inside, 'is', 'are')} still in it and "
        f"{describe.verb(inside, 'waits', 'wait')} in {describe.calls(inside)}"
    )


def _fix(inside: tuple[Seen, ...], *, stays: bool) -> str:
    same_steps = (
        "Give all ranks equally many steps: DistributedSampler pads by itself, "
        "`DataLoader(..., drop_last=True)` cuts the last batch, and `with Join([model]):` around "
        "the loop shadows the missing ones. If a rank decided alone to stop, decide together: "
        "`dist.all_reduce(stop, op=dist.ReduceOp.MAX)` before `if stop: break`."
    )
    if not stays:
        return same_steps
    return (
        f"If {describe.names(inside)} alone is meant to run this loop, such as a final evaluation, "
        f"call `model.module(x)` in it: the DDP model broadcasts buffers. Else: {same_steps}"
    )


@trace_check("DD902", "rank-left-loop")
def rank_left_loop_in_record(run: Analysis) -> Iterator[Finding]:
    """The same in a record. DD304 says of ranks without a batch left why they have left."""
    from ddpdoctor.analysis.uneven import out_of_batches
    from ddpdoctor.lastlook import judged_by

    if not out_of_batches(run):
        yield from judged_by(run, rank_left_loop)
