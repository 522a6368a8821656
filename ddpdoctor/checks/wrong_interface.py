"""DD408 wrong-interface: a name, address or port leads ranks elsewhere than to each other.

What it measures
    GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME against the interfaces of each host; the address that
    a host's own name leads to; what MASTER_ADDR leads to, and who listens on its port. Under
    `ddpdoctor run` the same of each init_process_group that does not come back. With
    `--network`, whether the rate is that of a slow card beside a faster one. In a log: that the
    port was taken.

Why it matters
    Ranks tell each other where they can be reached. A loopback address or the bridge of a container
    runtime is the same on every host: the others connect to themselves, and the start hangs. A
    port that another job holds lets rank 0 fail and all the others wait.

What to do
    Name the card that leads to the other hosts, in both variables: `ip -br addr` shows them. Take
    another port, or none: `torchrun --standalone`, or `--rdzv-endpoint HOST:0`.

When it is wrong
    Which interface leads to the other hosts is judged by its kind; a private network between the
    hosts that is wrongly routed is not seen. Containers that share their host's network see its
    bridges, too, and those are no fault unless they are taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ddpdoctor.checks import NotEnoughData, launch_check, log_check, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.hang import describe_log
from ddpdoctor.hang.joblog import JobLog
from ddpdoctor.ifnames import (
    GLOO,
    NCCL,
    cards,
    default_problem,
    faster_card,
    meets_on_loopback,
    problem_of,
    used_by,
)
from ddpdoctor.launchfacts import (
    LaunchFacts,
    PortHolder,
    Process,
    Reach,
    Rendezvous,
    hosts_of,
)

if TYPE_CHECKING:  # a launch check loads no pandas
    from ddpdoctor.analysis.model import Analysis

FILLED: Final = 0.3  # of the card's speed: with less of it reached, something else limits
OVERFILLED: Final = 1.2
_OTHER_PORT: Final = (
    "End that process if it is left over from another job, or take another port: --master-port, or "
    "torchrun --standalone on a single host."
)
_TO_AGENT: Final = (
    "Leave init_method out, or give env://, so that MASTER_ADDR and MASTER_PORT of the launcher "
    "are taken: under torchrun rank 0 listens at no other port. One of your own is for ranks that "
    "no torchrun has started."
)


@launch_check("DD408", "wrong-interface")
def wrong_interface(launch: LaunchFacts) -> Iterator[Finding]:
    if launch.is_noted and not launch.apart:
        return  # they met
    yield from _interfaces(launch)
    yield from _slow_card(launch)
    if launch.rendezvous is not None:
        yield from _address(launch, launch.rendezvous)
    if launch.port is not None:
        yield _port_held(launch.port, launch.processes[0], Severity.INFO)


@trace_check("DD408", "wrong-interface")
def wrong_interface_in_record(run: Analysis) -> Iterator[Finding]:
    from ddpdoctor.analysis.launched import recorded_launch

    launch = recorded_launch(run.run)
    if not launch.processes:
        raise NotEnoughData("no rank told of its device, limits and network")
    yield from wrong_interface(launch)


def _interfaces(launch: LaunchFacts) -> Iterator[Finding]:
    """One finding for each thing that is wrong, with all ranks that have it."""
    found: dict[tuple[str, Severity], list[Process]] = defaultdict(list)
    for process in launch.processes:
        for problem, severity in _problems(process, spans_hosts=launch.spans_hosts):
            found[problem, severity].append(process)
    for (problem, severity), processes in found.items():
        shown = ", ".join(f"{each.name} {each.address}" for each in cards(processes[0].network))
        card = next((each.name for each in cards(processes[0].network)), "the right card")
        yield Finding(
            severity=severity,
            confidence=Confidence.CERTAIN if "=" in problem else Confidence.LIKELY,
            message=f"{_who(processes)}: {problem}",
            fix=f"Set {GLOO} and {NCCL} to the card that leads to the other ranks, as {card}.",
            culprits=_ranks(processes),
            hosts=hosts_of(processes),
            evidence=(Evidence("cards of the host", shown or "none"),),
        )


def _problems(process: Process, *, spans_hosts: bool) -> Iterator[tuple[str, Severity]]:
    """The variable of the other backend is a hint. With a backend the ranks came together."""
    for variable, other in ((GLOO, "nccl"), (NCCL, "gloo")):
        problem = problem_of(variable, process, spans_hosts=spans_hosts)
        unused = process.backend == other or (variable == NCCL and not process.devices)
        if problem is not None:
            yield problem, Severity.INFO if unused else Severity.ERROR
    by_itself = default_problem(process) if spans_hosts and not process.backend else None
    if by_itself is not None:
        yield by_itself, Severity.WARNING if process.devices else Severity.ERROR


def _slow_card(launch: LaunchFacts) -> Iterator[Finding]:
    """The network was measured, and gives what a slow card gives while a faster one is there."""
    network = launch.network
    if network is None or network.busbw_gb_per_s is None or not launch.spans_hosts:
        return
    measured_mbit = network.busbw_gb_per_s * 8e3
    for processes in launch.by_host.values():
        used = used_by(processes[0], network.backend)
        faster = faster_card(processes[0], used) if used is not None else None
        if used is None or faster is None or measured_mbit < FILLED * (used.speed_mbit or 0):
            continue  # the card is not what limits it
        if measured_mbit > OVERFILLED * (used.speed_mbit or 0):
            continue  # more than it can give: another one was taken
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            message=(
                f"{_who(processes)}: {network.backend} runs on {used.name} of {used.speed_mbit} "
                f"Mbit/s and reaches {network.busbw_gb_per_s:.3f} GB/s, while {faster.name} "
                f"({faster.address}) has {faster.speed_mbit} Mbit/s"
            ),
            fix=f"Set {GLOO} and {NCCL} to {faster.name} if it leads to the other hosts.",
            culprits=_ranks(processes),
            hosts=hosts_of(processes),
            evidence=(
                Evidence("bus bandwidth measured", network.busbw_gb_per_s, "GB/s"),
                Evidence(f"speed of {used.name}", used.speed_mbit, "Mbit/s"),
                Evidence(f"speed of {faster.name}", faster.speed_mbit, "Mbit/s"),
            ),
        )


def _address(launch: LaunchFacts, met: Rendezvous) -> Iterator[Finding]:
    first = launch.processes[0]
    if met.reach is Reach.NO_NAME:
        yield _at_address(f"{met.address} leads to no address on {first.host}", met, first)
    elif meets_on_loopback(launch):
        yield _at_address(f"{met.address} is loopback, and the ranks are on several hosts", met)
    elif met.reach is Reach.TAKEN:
        held = _port_held(met.holder or PortHolder(met.port), first, Severity.ERROR)
        yield replace(held, fix=_TO_AGENT) if launch.meets_beside_agent else held
    elif launch.meets_beside_agent:
        yield _beside_agent(met, launch.apart)
    elif met.reach is Reach.FOREIGN:
        yield _at_address("what listens there is no store of this job", met)
    elif met.reach is Reach.NO_ANSWER and first.rank == 0:
        yield _at_address(f"{met.address} does not lead to {first.host}, where rank 0 runs", met)


def _at_address(problem: str, met: Rendezvous, process: Process | None = None) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        message=f"the ranks cannot meet at {met.address}:{met.port}: {problem}",
        fix=(
            "Give --master-addr (or --rdzv-endpoint) the name or address of rank 0's host as the "
            "other hosts know it, and a port that nobody else uses."
        ),
        hosts=(process.host,) if process is not None else (),
        evidence=(Evidence("it resolves to", ", ".join(met.resolved) or "nothing"),),
    )


def _beside_agent(met: Rendezvous, apart: Sequence[Process]) -> Finding:
    told = apart[0].environment
    agents = f"{told.get('MASTER_ADDR', '?')}:{told.get('MASTER_PORT', '?')}"
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        message=(
            f"nobody listens at {met.address}:{met.port}, where init_process_group was told to "
            f"meet: under torchrun the ranks meet at its agent's store ({agents}), and rank 0 "
            "listens nowhere"
        ),
        fix=_TO_AGENT,
        victims=_ranks(apart),
    )


def _port_held(holder: PortHolder, process: Process, severity: Severity) -> Finding:
    by = f"pid {holder.pid} ({holder.command})" if holder.pid is not None else "another process"
    so = "rank 0 cannot listen, and the others wait in vain"
    if severity is Severity.INFO:
        so = "a job that takes the usual port cannot start"
    return Finding(
        severity=severity,
        confidence=Confidence.CERTAIN,
        message=f"port {holder.port} of {process.host} is held by {by}: {so}",
        fix=_OTHER_PORT,
        culprits=_ranks([process]) if severity is not Severity.INFO else (),
    )


def _who(processes: list[Process]) -> str:
    first = processes[0].label
    more = len(processes) - 1
    return f"{first} and {more} more" if more else first


def _ranks(processes: Iterable[Process]) -> tuple[int, ...]:
    return tuple(sorted({process.rank for process in processes if process.rank is not None}))


@log_check("DD408", "wrong-interface")
def port_taken_by_log(log: JobLog) -> Iterator[Finding]:
    if log.taken_port is None:
        return
    port = f"port {log.taken_port}" if log.taken_port else "the port"
    culprits = tuple(each.rank for each in log.first)
    yield describe_log.finding(
        log,
        culprits,
        f"{port} was held by another process, so the ranks could not meet there",
        f"See who listens there: `ss -ltnp`. {_OTHER_PORT}",
        Confidence.CERTAIN,
    )
