"""DD407 rendezvous-incomplete: some ranks never come to where all meet.

What it measures
    Before training: which ranks reported at the rendezvous address within the time limit, and how
    far the others came. Under `ddpdoctor run`: which processes called init_process_group, and how
    that ended. In a job that hangs: ranks that stand in init_process_group, held against the world
    size, and launchers that wait for other nodes. In a log: how many of them joined.

Why it matters
    init_process_group waits for all ranks, for 10 minutes on gloo and longer where a time limit was
    raised. Those that came only say that they wait; the cause is with the ones that did not.

What to do
    Look on the hosts that are named as missing: was the job started there, with the same address,
    port and number of nodes? Refused: nobody listens there yet. No answer: a firewall, or a wrong
    address.

When it is wrong
    Ranks that come later than the time limit: --timeout. Numbers of ranks are given to nodes as
    torchrun does it, in a row. Calls of init_process_group are noted in a folder: of nodes that do
    not share it, the ranks of the others seem to be missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ddpdoctor.checks import NotEnoughData, hang_check, launch_check, log_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.hang import describe, describe_log
from ddpdoctor.hang.arguments import joins_as, world_size_told
from ddpdoctor.hang.joblog import JobLog
from ddpdoctor.hang.joining import Joining, joining
from ddpdoctor.hang.snapshot import HangSnapshot
from ddpdoctor.ifnames import meets_on_loopback
from ddpdoctor.launchfacts import LaunchFacts, Process, Reach, Rendezvous
from ddpdoctor.notedcalls import Why, ends, failed_by_themselves, why_apart
from ddpdoctor.wording import rank_list

_WHY = {
    Reach.REFUSED: ("nobody listens there", "Start rank 0 there, or correct address and port"),
    Reach.NO_ANSWER: (
        "no answer",
        "Look for a firewall between the hosts, and whether the address leads to rank 0's host",
    ),
}

_AGAIN: Final = "; a group that they had there before left its addresses in the store"
_OTHER_STORE: Final = (
    "Make one process group and keep it to the end, or let a further one meet elsewhere: "
    "init_method='file://...', a new file each time."
)
_TRY_THE_WAY: Final = (
    "Try the way between the ranks by `ddpdoctor check` under the same launcher: there may be a "
    "firewall, or a card that does not lead to the others (GLOO_SOCKET_IFNAME, "
    "NCCL_SOCKET_IFNAME). Where it only takes long, raise the timeout."
)
_NO_PLACE = (Reach.TAKEN, Reach.FOREIGN, Reach.NO_NAME)


@launch_check("DD407", "rendezvous-incomplete")
def rendezvous_incomplete(launch: LaunchFacts) -> Iterator[Finding]:
    met = launch.rendezvous
    if met is None:
        raise NotEnoughData("no other rank was asked for")
    if met.reach in _NO_PLACE or meets_on_loopback(launch) or launch.meets_beside_agent:
        raise NotEnoughData("the ranks have no place to meet, which is DD408")
    if launch.is_noted:
        yield from _not_joined(launch, met)
    elif met.reach in _WHY and launch.processes[0].rank != 0:
        yield _unreachable(launch.processes[0], met)
    elif met.reach is Reach.REACHED and launch.missing and not _has_another_cause(launch):
        yield _missing(launch, met)


def _has_another_cause(launch: LaunchFacts) -> bool:
    """Ranks that come twice (DD401) or disagree on how many there are (DD403)."""
    surplus = sum(len(processes) - 1 for processes in launch.ranks.values())
    sizes = {process.world_size for process in launch.processes}
    return surplus >= len(launch.missing) or len(sizes) > 1


def _not_joined(launch: LaunchFacts, met: Rendezvous) -> Iterator[Finding]:
    """By the calls of init_process_group: who failed by itself, who did not call, or why not."""
    match why_apart(launch):
        case Why.FAILED:
            yield _failed(failed_by_themselves(launch.apart), launch.apart)
        case Why.NOT_CALLED:
            yield _did_not_call(launch, met)
        case Why.NOT_MET:
            yield _did_not_meet(launch, met)
        case Why.INTERRUPTED:
            raise NotEnoughData("the job was ended from outside while its ranks joined")
        case Why.STARTING:
            raise NotEnoughData("ranks have called init_process_group, and may be about to meet")


def _failed(culprits: list[Process], apart: Sequence[Process]) -> Finding:
    ranks, first = _ranks(culprits), culprits[0].joining
    others = [rank for rank in _ranks(apart) if rank not in ranks]
    wait = f", and {rank_list(others)} cannot meet without" if others else ""
    said = f"{first.error}: {first.message}" if first else ""
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=f"init_process_group failed on {_who(culprits)}{wait}: {said}",
        fix=(
            f"Mend this error on {_who(culprits)}. `ddpdoctor check` under the same launcher tries "
            "the launch without the script."
        ),
        culprits=tuple(ranks),
        victims=tuple(others),
        evidence=ends(apart),
    )


def _did_not_call(launch: LaunchFacts, met: Rendezvous) -> Finding:
    missing = launch.missing
    elsewhere = launch.spans_hosts
    here = " on this host" if elsewhere else ""
    waited = f" and waited {met.waited_s:.0f} s" if met.waited_s >= 1 else ""
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.POSSIBLE if elsewhere else Confidence.LIKELY,
        message=(
            f"{len(launch.ranks)} of {launch.world_size} ranks called init_process_group{here}"
            f"{waited} at {_place(met)}; {rank_list(missing)} did not"
        ),
        fix=(
            "Look at the log of the missing ranks: whether they were started, with this address, "
            "port and world size, and what they do before init_process_group."
        ),
        culprits=missing,
        victims=tuple(_ranks(launch.apart)),
        evidence=ends(launch.apart),
    )


def _did_not_meet(launch: LaunchFacts, met: Rendezvous) -> Finding:
    ranks = _ranks(launch.apart)
    again = any(process.joining is not None and process.joining.again for process in launch.apart)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"all {launch.world_size} ranks called init_process_group at {_place(met)}, and "
            f"{rank_list(ranks)} did not reach the others within {met.waited_s:.0f} s"
            f"{_AGAIN * again}"
        ),
        fix=_OTHER_STORE if again else _TRY_THE_WAY,
        victims=tuple(ranks),
        evidence=ends(launch.apart),
    )


def _who(processes: Sequence[Process]) -> str:
    ranks = _ranks(processes)
    return rank_list(ranks) if ranks else f"pid {processes[0].pid} on {processes[0].host}"


def _place(met: Rendezvous) -> str:
    return f"{met.address}:{met.port}" if met.port else met.address or "a store of the script's"


def _unreachable(process: Process, met: Rendezvous) -> Finding:
    why, what = _WHY[met.reach]
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=(
            f"{process.label} cannot reach {met.address}:{met.port}, where the ranks meet: {why} "
            f"in {met.waited_s:.0f} s"
        ),
        fix=f"{what}.",
        victims=(process.rank,) if process.rank is not None else (),
        evidence=(Evidence("the address resolves to", ", ".join(met.resolved)),),
    )


def _missing(launch: LaunchFacts, met: Rendezvous) -> Finding:
    missing = launch.missing
    came = len(launch.ranks)
    silent = _silent_hosts(launch)
    verb = "is" if len(missing) == 1 else "are"
    who = rank_list(missing, launch.unit)
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=(
            f"{came} of {launch.world_size} {launch.unit}s came to {met.address}:{met.port} within "
            f"{met.waited_s:.0f} s; {who} {verb} missing{_where(launch, silent)}"
        ),
        fix=(
            "Look at the log of the missing ranks: whether they were started, with this address, "
            "port and world size, and whether their host can reach it."
        ),
        culprits=missing,
        victims=tuple(launch.ranks),
        hosts=silent,
        evidence=tuple(
            Evidence(f"came from {host}", rank_list(_ranks(processes), launch.unit))
            for (host, _), processes in launch.by_host.items()
            if _ranks(processes)
        ),
    )


def _silent_hosts(launch: LaunchFacts) -> tuple[str, ...]:
    """Hosts of the job that sent nobody, where the scheduler has told the hosts."""
    came = {process.host.split(".")[0] for process in launch.processes}
    return tuple(node for node in launch.nodes if node.split(".")[0] not in came)


def _where(launch: LaunchFacts, silent: tuple[str, ...]) -> str:
    if silent:
        return f" (nobody came from {', '.join(silent[:4])}{' and more' * (len(silent) > 4)})"
    size = next((p.local_world_size for p in launch.processes if p.local_world_size), None)
    if size is None or size == launch.world_size or launch.unit != "rank":
        return ""
    nodes = sorted({rank // size for rank in launch.missing})
    return f" (of node {', '.join(map(str, nodes[:8]))}, counted from 0)"


def _ranks(processes: Iterable[Process]) -> list[int]:
    return sorted({process.rank for process in processes if process.rank is not None})


@hang_check("DD407", "rendezvous-incomplete")
def rendezvous_incomplete_in_a_hang(snapshot: HangSnapshot) -> Iterator[Finding]:
    if snapshot.launcher is not None:
        yield _waiting_launcher(snapshot)
        return
    stuck = joining(snapshot)
    came = [joins_as(seen.process) for seen in stuck.ranks] if stuck else []
    twice = len(set(came)) < len(came)  # which is DD401
    if stuck is not None and snapshot.job.masters and not stuck.missing:
        yield _other_places(snapshot, stuck)
    elif stuck is not None and stuck.missing and not twice:
        yield _stuck_in_joining(snapshot, stuck)


def _other_places(snapshot: HangSnapshot, stuck: Joining) -> Finding:
    """All ranks are here, and look for each other at different places."""
    by_place: dict[str, list[int]] = defaultdict(list)
    for rank, place in snapshot.job.masters:
        by_place[place].append(rank)
    first = min(by_place, key=lambda place: min(by_place[place]))
    strays = tuple(sorted(r for place, own in by_place.items() if place != first for r in own))
    said = "; ".join(f"{rank_list(ranks)} at {place}" for place, ranks in by_place.items())
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=f"the ranks wait for each other at different places: {said}",
        fix=(
            f"Give {rank_list(strays)} the MASTER_ADDR and MASTER_PORT of rank 0, {first}. Where "
            "they are the same and ranks still do not meet, see whether a firewall stands between."
        ),
        culprits=strays,
        victims=tuple(sorted(by_place[first])),
        hosts=describe.hosts(snapshot),
        evidence=(describe.looks(snapshot), *describe.states(stuck.ranks)),
        where=describe.locations(stuck.ranks[:1]),
    )


def _stuck_in_joining(snapshot: HangSnapshot, stuck: Joining) -> Finding:
    seen = stuck.ranks
    many = len(seen) != 1
    place = describe.calls(seen[:1])
    missing = stuck.missing
    here = "is not on this host" if len(missing) == 1 else "are not on this host"
    master = f" at {snapshot.job.master}" if snapshot.job.master else ""
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"{describe.names(seen)} {'wait' if many else 'waits'} in {place} for all "
            f"{world_size_told(snapshot)} ranks to meet{master}; {rank_list(missing)} {here}"
        ),
        fix=(
            "Start as many processes as WORLD_SIZE says (with Slurm: --ntasks-per-node). If they "
            "were started on other hosts, see whether they run there, and with which MASTER_ADDR, "
            "MASTER_PORT and WORLD_SIZE; `ddpdoctor check` on each node tests the way between them."
        ),
        culprits=missing,
        victims=tuple(number for each in seen if (number := each.number) is not None),
        hosts=describe.hosts(snapshot),
        evidence=(describe.looks(snapshot), *describe.states(seen)),
        where=describe.locations(seen[:1]),
    )


def _waiting_launcher(snapshot: HangSnapshot) -> Finding:
    waits = snapshot.launcher
    assert waits is not None  # noqa: S101  asked for above
    nodes = f" of {waits.nodes} nodes" if waits.nodes else ""
    at = f" at {waits.endpoint}" if waits.endpoint else ""
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"the launcher (pid {waits.pid}) waits for the others{nodes} to meet{at}, and has "
            "started no rank"
        ),
        fix=(
            "Start the launcher on every node, with the same --nnodes and the same address and "
            "port, and another --node-rank on each. `ddpdoctor check --nnodes N --node-rank I "
            "--rdzv-endpoint HOST:PORT` on each node tests the way between them."
        ),
        hosts=describe.hosts(snapshot),
        evidence=(
            describe.looks(snapshot),
            Evidence("the launcher stands in", waits.function),
        ),
    )


@log_check("DD407", "rendezvous-incomplete")
def rendezvous_incomplete_by_log(log: JobLog) -> Iterator[Finding]:
    if log.joined is None or log.taken_port is not None or log.first:
        return
    came, size = log.joined
    yield describe_log.finding(
        log,
        (),
        f"only {came} of {size} ranks came to where all meet",
        f"See whether all {size} ranks were started (WORLD_SIZE; with Slurm as many tasks as "
        "ranks), each with a RANK of its own and the same MASTER_ADDR and MASTER_PORT, and whether "
        "a firewall stands between the hosts: `ddpdoctor check` on each node.",
        Confidence.LIKELY,
    )
