"""Makes launches by hand: processes on hosts that have a card, loopback and common limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddpdoctor.checks import CheckResult, launch_checks, run_check
from ddpdoctor.findings import Finding
from ddpdoctor.launchfacts import (
    Device,
    Interface,
    InterfaceKind,
    Joining,
    LaunchFacts,
    Limits,
    Network,
    Outcome,
    Process,
    Reach,
    Rendezvous,
)
from ddpdoctor.launchrecord import note_path, read_launch
from ddpdoctor.processfacts import encoded

GIB = 2**30
LOOPBACK = Interface("lo", "127.0.0.1", True, InterfaceKind.LOOPBACK)
DOCKER = Interface("docker0", "172.17.0.1", True, InterfaceKind.BRIDGE)
COMMON = Limits(
    open_files=1024, processes=60_000, locked_memory_bytes=8 * 2**20, shm_bytes=32 * GIB,
    shm_free_bytes=32 * GIB, memory_bytes=None, host_cpus=8, cpu_quota=None,
)  # fmt: skip


def process(rank: int | None, host: str = "node0", **facts: object) -> Process:
    """A rank of a healthy job of two; hosts have addresses of their own."""
    number = int(host[-1])
    card = Interface("eth0", f"10.0.0.{number + 1}", True)
    made = Process(
        host, 1000 + (rank or 0), f"boot{number}/net", rank, 2, rank, 2, number,
        versions={"python": "3.11.7", "torch": "2.13.0"},
        cpus=8,
        limits=COMMON,
        network=Network((LOOPBACK, card, DOCKER), card.address),
    )  # fmt: skip
    return replace(made, **facts)  # type: ignore[arg-type]


def gpus(count: int) -> tuple[Device, ...]:
    return tuple(Device(f"GPU-{number}", "H100") for number in range(count))


def met(reach: Reach = Reach.REACHED, **facts: object) -> Rendezvous:
    made = Rendezvous("node0", 29500, reach, ("10.0.0.1",), waited_s=5.0)
    return replace(made, **facts)  # type: ignore[arg-type]


def launch(*processes: Process, **facts: object) -> LaunchFacts:
    """Ranks that met, as many as there should be."""
    made = LaunchFacts(processes, len({each.rank for each in processes}), met())
    return replace(made, **facts)  # type: ignore[arg-type]


def called(rank: int, **facts: object) -> Process:
    """A rank under torchrun that has called init_process_group, and joined unless facts differ.

    `call` holds what differs in its call.
    """
    call = {"place": "node0:29500", "outcome": Outcome.JOINED, "began_s": 100.0, "seconds": 0.5}
    call |= facts.pop("call", {})  # type: ignore[call-overload]
    told = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
            "TORCHELASTIC_USE_AGENT_STORE": "True"}  # fmt: skip
    told |= facts.pop("told", {})  # type: ignore[call-overload]
    return process(rank, joining=Joining(**call), environment=told, **facts)  # type: ignore[arg-type]


TIMED_OUT = {
    "outcome": Outcome.FAILED, "seconds": 8.0, "error": "DistBackendError",
    "message": "Gloo connectFullMesh failed with [..] Connect timeout",
}  # fmt: skip
WAITS = {"outcome": Outcome.WAITS, "seconds": None, "waited_s": 30.0}


def noted(folder: Path, *processes: Process) -> tuple[LaunchFacts, ...]:
    """What is read of the notes of these processes."""
    for each in processes:
        path = note_path(folder, each)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(each))
    return read_launch(folder).meetings


def two_hosts(**facts: object) -> LaunchFacts:
    """One rank on each of two hosts; the facts are those of rank 1."""
    ranks = [process(rank, f"node{rank}", local_rank=0, local_world_size=1) for rank in (0, 1)]
    return launch(ranks[0], replace(ranks[1], **facts))  # type: ignore[arg-type]


def results(facts: LaunchFacts) -> dict[str, CheckResult]:
    """What each launch check says, by code; no check may crash."""
    said = {check.code: run_check(check, facts) for check in launch_checks()}
    assert not [result.reason for result in said.values() if result.outcome == "crash"]
    return said


def only_finding(facts: LaunchFacts) -> tuple[str, Finding]:
    """The one finding that the launch checks together have, and its code."""
    found = [
        (code, finding) for code, result in results(facts).items() for finding in result.findings
    ]
    assert len(found) == 1, found
    return found[0]


def codes(facts: LaunchFacts) -> list[str]:
    return [code for code, result in results(facts).items() if result.findings]
