"""DD908 transport-stalled: all ranks are in the same call, and it does not complete.

What it measures
    The call and line in which every rank of the job waits; where the ranks were recorded, also the
    sequence number within the group. In dumps of torch's flight recorder, also ranks in which a
    call does not complete, or begin, that others of its group have completed or begun. In a log:
    whether the watchdogs of all ranks gave up the same call.

Why it matters
    When all ranks have arrived, no rank is to blame: what lies below them is, such as the network,
    a firewall, the wrong interface, or two groups whose calls crossed.

What to do
    If the ranks use several process groups, make their calls in the same order on all ranks. Else
    test the network between the hosts, and set the interface (GLOO_SOCKET_IFNAME,
    NCCL_SOCKET_IFNAME). Record the run to know the sequence numbers.

When it is wrong
    The same line is not the same collective: without a record, a rank that is one call ahead in
    a loop looks the same. Therefore it says `possible` unless the records agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.checks import NotEnoughData, dump_check, hang_check, log_check, trace_check
from ddpdoctor.findings import Confidence, Finding, Severity
from ddpdoctor.hang import describe, describe_calls, describe_log
from ddpdoctor.hang.activity import Activity
from ddpdoctor.hang.alike import explained
from ddpdoctor.hang.arguments import told_apart
from ddpdoctor.hang.joblog import JobLog
from ddpdoctor.hang.joining import awaits_others, makes_group
from ddpdoctor.hang.order import crossed, misnamed
from ddpdoctor.hang.situation import Kind, Seen, mismatch_told, numbers, shift_told, situation
from ddpdoctor.hang.snapshot import HangSnapshot, LastCollective
from ddpdoctor.hang.standing import Standing
from ddpdoctor.hang.whowaited import who_waited
from ddpdoctor.wording import rank_list

if TYPE_CHECKING:  # a hang check loads no pandas
    from ddpdoctor.analysis.model import Analysis


@hang_check("DD908", "transport-stalled")
def transport_stalled(snapshot: HangSnapshot) -> Iterator[Finding]:
    scene = situation(snapshot)
    if scene.kind is not Kind.SAME_CALL or crossed(snapshot) or misnamed(snapshot):
        return  # groups that are crossed, or made by some, are DD911
    if explained(snapshot):
        return  # that is DD404 or DD405
    if awaits_others(snapshot) or makes_group(snapshot):  # that is DD407, or DD911
        return
    if shift_told(snapshot) or mismatch_told(snapshot) or told_apart(snapshot):
        # one line, and not one call
        return
    waiting = scene.waiting
    if snapshot.elsewhere:
        raise NotEnoughData(
            f"{describe.names(waiting)} {describe.verb(waiting, 'waits', 'wait')} in "
            f"{describe.calls(waiting)}, and {snapshot.elsewhere} more ranks of the job are not on "
            "this host: run `ddpdoctor diagnose` on the others, too"
        )
    if len(waiting) == 1 or any(seen.process.movement.is_busy for seen in waiting):
        raise NotEnoughData(
            f"{describe.names(waiting)} {describe.verb(waiting, 'stays', 'stay')} in "
            f"{describe.calls(waiting)}, which may be a long computation: look again in a minute"
        )
    pending = [_pending(seen) for seen in waiting]
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY if _agree(pending) else Confidence.POSSIBLE,
        message=(
            f"all ranks wait in {describe.calls(waiting[:1])} and it does not complete: no rank is "
            f"missing, so {_suspect(waiting, pending)}"
        ),
        fix=_fix(waiting[0], pending),
        victims=numbers(waiting),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            *describe.records(waiting),
            *describe.states(waiting),
        ),
        where=describe.locations(waiting[:1]),
    )


def _pending(seen: Seen) -> LastCollective | None:
    return next((last for last in seen.process.collectives if last.pending), None)


def _agree(pending: list[LastCollective | None]) -> bool:
    """Whether the records say that all ranks are in one and the same collective."""
    same = {(last.group, last.seq, last.op) for last in pending if last is not None}
    return len(same) == 1 and None not in pending


def _suspect(waiting: tuple[Seen, ...], pending: list[LastCollective | None]) -> str:
    if _agree(pending):
        return "the transport below them is the suspect"
    if waiting[0].place.activity is Activity.STORE:
        return "they wait for a key that nobody sets"
    if None not in pending:
        return "they are in different collectives of the same line, by their records"
    return "the transport, or calls of several groups that crossed, are the suspects"


def _fix(first: Seen, pending: list[LastCollective | None]) -> str:
    if first.place.activity is Activity.STORE:
        return "Look which rank should set this key in the store, and why it did not."
    measure = (
        "" if None not in pending else " Record the run (`ddpdoctor run ...`) to know the numbers."
    )
    return (
        "If there are several process groups, use them in the same order on all ranks. Else test "
        "the network between the hosts, and name the interface: GLOO_SOCKET_IFNAME or "
        f"NCCL_SOCKET_IFNAME.{measure}"
    )


@dump_check("DD908", "transport-stalled")
def transport_stalled_in_dumps(scene: Standing) -> Iterator[Finding]:
    if scene.is_explained:
        return
    if scene.stuck:
        yield describe_calls.finding(
            scene,
            scene.stuck,
            f"calls of {rank_list(scene.stuck)} do not complete that other ranks have completed or "
            f"begun: {describe_calls.calls_of(scene, scene.stuck)}",
            f"Look at the devices and links of {rank_list(scene.stuck)}: `dmesg` (Xid errors of a "
            "GPU), `nvidia-smi -q`, the network of their hosts. A kernel of another stream that "
            "never ends looks the same.",
            Confidence.POSSIBLE if scene.gone_or_unread else Confidence.LIKELY,
        )
    elif scene.together:
        yield describe_calls.finding(
            scene,
            (),
            f"{rank_list(scene.together)} are in {describe_calls.calls_of(scene, scene.together)} "
            "with all that belong to it, and it does not complete: the transport below them is the "
            "suspect",
            "Test the network between the hosts, and name the interface: GLOO_SOCKET_IFNAME or "
            "NCCL_SOCKET_IFNAME. If the job still ran when the dumps were written, it was no hang.",
            shown={rank: scene.front(rank) for rank in scene.together[:2]},
        )


@log_check("DD908", "transport-stalled")
def transport_stalled_by_log(log: JobLog) -> Iterator[Finding]:
    waited = who_waited(log)
    if waited and waited.together and not log.first and not log.mismatched:
        yield describe_log.finding(
            log, (),
            f"all ranks were in one call and it did not complete: "
            f"{describe_log.timeouts(waited.calls)}",
            "Test the network between the hosts, and name the interface: NCCL_SOCKET_IFNAME or "
            "GLOO_SOCKET_IFNAME. If it is the first call of the job, try NCCL_P2P_DISABLE=1, and "
            "bind each rank to its device first (torch.cuda.set_device(local_rank)).",
            Confidence.LIKELY,
        )  # fmt: skip


@trace_check("DD908", "transport-stalled")
def transport_stalled_in_record(run: Analysis) -> Iterator[Finding]:
    """The same in a record, by where its ranks noted that they stood still."""
    from ddpdoctor.lastlook import judged_by

    if not run.mixed:  # else DD904 speaks
        yield from judged_by(run, transport_stalled)
