"""`ddpdoctor check`: look at this node and at how the ranks meet, before training, and judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ddpdoctor.baseline import NetworkBaseline
from ddpdoctor.checks import CheckResult, launch_checks, run_check
from ddpdoctor.errors import BadLaunch
from ddpdoctor.findings import Severity
from ddpdoctor.launchfacts import LaunchFacts, Process, Reach
from ddpdoctor.preflight.collect import this_process
from ddpdoctor.preflight.launcher import DEFAULT_PORT, Launch
from ddpdoctor.preflight.meeting import Meeting
from ddpdoctor.preflight.ports import holder_of
from ddpdoctor.report import Report

FAILING_NODES: Final = "failing_nodes.txt"


@dataclass(frozen=True)
class Checkup:
    """What one process has to say; nothing where another one says it for all.

    `status` is the exit status that the other one told, or None where none came in time.
    """

    facts: LaunchFacts | None
    report: Report | None
    meeting: Meeting | None = None
    status: int | None = None

    def tell_others(self, status: int) -> None:
        """Let the other ranks end with the same status."""
        if self.meeting is not None and self.meeting.judges:
            self.meeting.publish(status)


def node_launch(nodes: int | None, node_rank: int | None, endpoint: str | None) -> Launch:
    """A meeting of one process a node, without a launcher. Raises BadLaunch."""
    if nodes is None or node_rank is None or not 0 <= node_rank < nodes:
        raise BadLaunch("nodes meet by --nnodes and --node-rank, the number of this one from 0")
    host, _, port = (endpoint or "").rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and len(port) < 6):
        raise BadLaunch("nodes meet at --rdzv-endpoint HOST:PORT: node 0, as the others know it")
    if not 0 < int(port) < 65536:
        raise BadLaunch(f"{port} is no port")
    return Launch(
        rank=node_rank, world_size=nodes, local_rank=0, local_world_size=1, node_rank=node_rank,
        address=host.strip("[]"), port=int(port), job=f"nodes {nodes}", unit="node",
    )  # fmt: skip


def check_launch(
    launch: Launch, timeout_s: float, script: Path | None = None, *, network: bool = False
) -> Checkup:
    """Look, meet the others if there are any, and judge. Raises TorchMissing.

    With `network` it is measured between them; all ranks must ask for it.
    """
    own = this_process(launch, script)
    if not launch.meets:
        return _alone(launch, own)
    meeting = Meeting(launch, own, timeout_s)
    if meeting.rendezvous.reach is not Reach.REACHED:
        facts = LaunchFacts((own,), launch.world_size, meeting.rendezvous, launch.nodes)
        if own.local_rank:  # the first rank of the host says it
            return Checkup(None, None)
        return Checkup(facts, judge(facts, launch))
    measured = meeting.measure_network(own) if network else None
    if not meeting.judges:
        status = meeting.verdict()
        if status is not None:
            return Checkup(None, None, meeting, status)
    return _together(launch, meeting, measured)


def _alone(launch: Launch, own: Process) -> Checkup:
    # under torchrun its agent holds the port already, as it should
    holder = None if launch.agent_store else holder_of(launch.port or DEFAULT_PORT)
    facts = LaunchFacts((own,), launch.world_size, nodes=launch.nodes, port=holder)
    return Checkup(facts, judge(facts, launch))


def _together(launch: Launch, meeting: Meeting, network: NetworkBaseline | None) -> Checkup:
    waits = meeting.judges and not meeting.is_late
    gathered = meeting.gather(wait=waits)
    met = replace(meeting.rendezvous, waited_s=meeting.waited_s)
    facts = LaunchFacts(
        gathered.processes, launch.world_size, met, launch.nodes, unreadable=gathered.unreadable,
        network=network,
    )  # fmt: skip
    first = min((process.rank or 0 for process in gathered.processes), default=launch.rank)
    if not meeting.judges and launch.rank != first:  # rank 0 did not come: the first of the others
        return Checkup(None, None, meeting)
    return Checkup(facts, judge(facts, launch), meeting)


def judge(facts: LaunchFacts, launch: Launch) -> Report:
    """All launch checks on these facts, as a report."""
    results = tuple(run_check(check, facts) for check in launch_checks())
    if facts.unit != "rank":
        results = tuple(map(_without_ranks, results))
    notes = []
    if facts.unreadable:
        notes.append(f"the reports of {facts.unreadable} processes could not be read")
    if facts.network is not None and facts.network.problem:
        notes.append(f"the network was not measured whole: {facts.network.problem}")
    name = launch.job.strip("/") or facts.processes[0].host if facts.processes else "launch"
    return Report("launch", name, results, notes=tuple(notes))


def _without_ranks(result: CheckResult) -> CheckResult:
    """Where each process stands for a node, its number is no rank."""
    findings = tuple(replace(each, culprits=(), victims=()) for each in result.findings)
    return replace(result, findings=findings)


def write_failing_nodes(report: Report, path: Path) -> Sequence[str]:
    """Hosts with a fault of their own, one a line; no file where there is none. Raises OSError."""
    hosts = sorted(
        {
            host
            for _, finding in report.findings
            if finding.severity >= Severity.WARNING
            for host in finding.hosts
        }
    )
    if hosts:
        path.write_text("".join(f"{host}\n" for host in hosts), encoding="utf-8")
    return hosts
