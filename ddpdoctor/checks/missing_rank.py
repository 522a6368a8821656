"""DD903 missing-rank: a rank is busy elsewhere while the others wait for it in a collective.

What it measures
    The main thread's stack of every rank, looked at two or three times: ranks that stand in a
    collective or wait for the store, and the ranks that stand anywhere else without moving. In
    dumps of torch's flight recorder: ranks that are in no call, and for which others wait. In a
    log: ranks that did not come to the collective that the others' watchdogs gave up.

Why it matters
    A collective completes when its last rank arrives. What the waiting ranks show is the
    consequence; the line where the missing rank stands is the cause.

What to do
    Look at that line. Work that only one rank does (evaluation, saving, preparing data) belongs on
    all ranks, or needs a timeout longer than it takes. A lock, a pipe or a file that never comes
    is to be mended there.

When it is wrong
    A rank that sleeps or waits for a disk for longer than was watched looks the same and will go
    on by itself: look again after a while. Ranks on other hosts are not seen. Dumps do
    not tell how long a rank has been away, and gloo's do not hold sends and receives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.checks import NotEnoughData, dump_check, hang_check, log_check, trace_check
from ddpdoctor.findings import Confidence, Finding, Severity
from ddpdoctor.hang import describe, describe_calls, describe_log
from ddpdoctor.hang.activity import Activity
from ddpdoctor.hang.alike import explained
from ddpdoctor.hang.joblog import JobLog
from ddpdoctor.hang.order import Behind, behind
from ddpdoctor.hang.pursuit import pursuit_of
from ddpdoctor.hang.pyspy import PERMISSION_HELP
from ddpdoctor.hang.situation import Kind, Seen, Situation, numbers, shift_told, situation
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.hang.standing import Standing
from ddpdoctor.hang.whowaited import who_waited
from ddpdoctor.hang.wrapping import unwrapped
from ddpdoctor.wording import rank_list

if TYPE_CHECKING:  # a hang check loads no pandas
    from ddpdoctor.analysis.model import Analysis


@hang_check("DD903", "missing-rank")
def missing_rank(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    if scene.kind is Kind.UNREADABLE:
        late = _late_by_records(snapshot)
        if late:
            yield _by_records(snapshot, scene, late)
            return
        refusals = {seen.process.refusal or "it shows no stack" for seen in scene.unreadable}
        raise NotEnoughData(f"{describe.names(scene.unreadable)}: {'; '.join(sorted(refusals))}")
    if scene.kind is Kind.NOBODY_WAITS and not _all_in_loader(scene):
        raise NotEnoughData(
            f"no rank waits in a collective: {describe.names(scene.elsewhere)} "
            f"{_doing(scene.elsewhere)}; look again in a minute, and if it is still "
            "there, see what that line waits for"
        )
    if scene.kind is not Kind.HELD_UP or shift_told(snapshot) or explained(snapshot):
        return  # DD905, DD404 or DD405 knows more
    if unwrapped(snapshot):
        return  # DD406 does
    left = scene.leavers()
    missing = tuple(
        seen
        for seen in scene.elsewhere
        if seen not in left and not seen.holds_gil and seen.place.activity is not Activity.LOADER
    )
    if missing:
        yield _finding(snapshot, scene, missing)


def _all_in_loader(scene: Situation) -> bool:
    """Then DD907 speaks."""
    return all(seen.place.activity is Activity.LOADER for seen in scene.elsewhere)


def _finding(snapshot: HangSnapshot, scene: Situation, missing: tuple[Seen, ...]) -> Finding:
    late = behind(snapshot)
    proven = sum(rank in late for rank in numbers(missing)) == len(missing)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if proven else Confidence.LIKELY,
        message=(
            f"{describe.names(missing)} {_doing(missing)}, while "
            f"{describe.names(scene.waiting)} {describe.verb(scene.waiting, 'waits', 'wait')} in "
            f"{describe.calls(scene.waiting)}"
        ),
        fix=_fix(missing, scene) + ("" if proven else _SLOW_STEPS),
        culprits=numbers(missing),
        victims=describe.victims(scene, missing),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *describe.conditions(scene.all),
            *describe.records(scene.all),
            *describe.states(scene.all),
        ),
        where=describe.locations(missing),
    )


def _late_by_records(snapshot: HangSnapshot) -> list[Behind]:
    """Ranks that hold others up and wait in nothing themselves; needs no stack."""
    waiting = {r.rank for r in snapshot.ranks if any(last.pending for last in r.collectives)}
    late = behind(snapshot)
    return [late[rank] for rank in sorted(late) if rank not in waiting]


def _by_records(snapshot: HangSnapshot, scene: Situation, late: list[Behind]) -> Finding:
    awaited = late[0].awaited
    culprits = tuple(each.rank for each in late)
    has = "have" if len(late) > 1 else "has"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"{rank_list(culprits)} {has} not come to {awaited.op} (number {awaited.seq} of group "
            f"{awaited.group}), in which rank {late[0].waiting} waits; this is by their records, "
            "since stacks may not be read"
        ),
        fix=(
            "To see the line where it stands, read the stacks, too: "
            f"{PERMISSION_HELP}. Until then, its own log tells what it did last."
        ),
        culprits=culprits,
        victims=tuple(
            seen.number
            for seen in scene.all
            if seen.number is not None and seen.number not in culprits
        ),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *describe.records(scene.all),
            *describe.states(scene.all),
        ),
    )


_SLOW_STEPS = " Where an ordinary step takes longer than was watched: `--watch 10`."


def _doing(missing: tuple[Seen, ...]) -> str:
    return describe.doing(missing[0], plural=len(missing) > 1)


def _fix(missing: tuple[Seen, ...], scene: Situation) -> str:
    place = missing[0].place.text
    pursuit = pursuit_of(missing[0].process)
    if any(seen.place.activity is Activity.JOINING for seen in scene.waiting):
        return f"Let it reach init_process_group: see what {place} waits for."
    if pursuit is not None:
        return f"It is {pursuit.doing}. {pursuit.fix} If it never ends, see what {place} waits for."
    if len(missing) == 1 and len(scene.waiting) > 0 and missing[0].number == 0:
        return (
            f"If {place} is work of rank 0 alone, either let all ranks do it, or let the others "
            "wait longer than it takes: `init_process_group(timeout=timedelta(hours=2))`. If it "
            "never ends, see what this line waits for."
        )
    return (
        f"See what {place} waits for. If only some ranks come there by design, every collective "
        "behind it must be reached by all ranks: move it out of the condition."
    )


@dump_check("DD903", "missing-rank")
def missing_rank_in_dumps(scene: Standing) -> Iterator[Finding]:
    if not scene.waiting:
        raise NotEnoughData(
            f"nothing was pending on {rank_list([each.rank for each in scene.dumps.ranks])} when "
            "the dumps were written"
        )
    missing = scene.absent
    if not missing or scene.is_explained:
        return
    waiting = describe_calls.direct_victims(scene, missing)
    plural = len(missing) > 1
    last = f"; {describe_calls.last_call(scene.dumps.by_rank[missing[0]])}" if not plural else ""
    yield describe_calls.finding(
        scene,
        missing,
        f"{rank_list(missing)} {'are' if plural else 'is'} in no call{last}, while "
        f"{rank_list(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for "
        f"{'them' if plural else 'it'} in {describe_calls.calls_of(scene, waiting)}",
        f"See what {rank_list(missing)} did then: by {'their' if plural else 'its'} own log, or "
        "while the job hangs by `ddpdoctor diagnose` on the host. Work that only some ranks do, a "
        "lock, or native code that keeps the GIL shows there with its line.",
        Confidence.POSSIBLE if scene.gone_or_unread else Confidence.LIKELY,
    )


@log_check("DD903", "missing-rank")
def missing_rank_by_log(log: JobLog) -> Iterator[Finding]:
    waited = who_waited(log)
    if log.first:
        return  # DD901: it did not come since it had failed
    if log.absent:
        missing = log.absent
        waits = "a monitored barrier gave up waiting for"
        yield _by_log(log, missing, f"{waits} {rank_list(missing)}")
    elif waited and waited.behind:
        missing = waited.behind
        others = [call for call in waited.calls if call.rank not in missing]
        verb = "were" if len(missing) > 1 else "was"
        yield _by_log(
            log,
            missing,
            f"{describe_log.timeouts(others)}, while {rank_list(missing)} {verb} not there",
        )
    elif waited and not waited.together and not waited.different:
        raise NotEnoughData(
            f"{describe_log.timeouts(waited.calls)}; what the other ranks did then is not in this "
            "log: add theirs, or the dumps that torch wrote (TORCH_FR_DUMP_TEMP_FILE)"
        )


def _by_log(log: JobLog, missing: tuple[int, ...], message: str) -> Finding:
    return describe_log.finding(
        log,
        missing,
        message,
        f"See what {rank_list(missing)} did for so long: evaluating, saving, preparing data or "
        "compiling alone (then let all ranks do it, or wait longer: "
        "`init_process_group(timeout=timedelta(hours=2))`), or out of the loop already, with fewer "
        "batches. While the job hangs, `ddpdoctor diagnose` on its host shows the line.",
        Confidence.LIKELY,
    )


@trace_check("DD903", "missing-rank")
def missing_rank_in_record(run: Analysis) -> Iterator[Finding]:
    """The same in a record, by where its ranks noted that they stood still."""
    from ddpdoctor.lastlook import judged_by

    yield from judged_by(run, missing_rank)
