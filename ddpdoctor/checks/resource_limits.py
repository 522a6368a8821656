"""DD409 resource-limits: a limit of the host or container is too low for the ranks on it.

What it measures
    The size of /dev/shm and what is free of it, the limits of open files, of processes and threads
    and of locked memory, the CPU time that the container may use, the CPUs to which the ranks are
    bound, and the threads of all ranks against these.

Why it matters
    DataLoader workers hand batches over through /dev/shm and NCCL keeps its buffers there: full, it
    is a bus error in a worker, or a hang. Too few files or threads fail late, when a loader
    starts anew. More threads than CPUs make every rank slow in turn.

What to do
    Containers: `--shm-size=8g` (or `--ipc=host`), `--ulimit nofile=65536 --ulimit memlock=-1`.
    Elsewhere `ulimit -n 65536`. OMP_NUM_THREADS = CPUs divided by the ranks of the host.

When it is wrong
    How much a job needs depends on its batches and workers: the thresholds are for common sizes. A
    job without workers and on gloo needs hardly any /dev/shm: in a recorded run it is a hint then,
    and before training, when the workers are not known, a warning. Whether the ranks of a recorded
    run had to wait for CPUs was measured, and is not judged here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ddpdoctor.checks import NotEnoughData, launch_check, trace_check
from ddpdoctor.findings import Confidence, Evidence, Finding, Severity
from ddpdoctor.launchfacts import UNLIMITED, LaunchFacts, Process

if TYPE_CHECKING:  # a launch check loads no pandas
    from ddpdoctor.analysis.model import Analysis

MIB: Final = 2**20
SHM: Final = "/dev/shm"  # noqa: S108  its size is looked at
# Two workers with two prefetched batches each, of 64 images of 3 x 224 x 224 floats, are 147 MiB;
# NCCL takes some 10 MiB a rank. A container has 64 MiB unless it is told otherwise.
SHM_PER_RANK: Final = 256 * MIB
SHM_LEAST_FREE: Final = 64 * MIB  # below it not two such batches fit
FILES_LEAST: Final = 512  # of an interpreter with torch, its workers, pipes and libraries
FILES_PER_RANK: Final = 4  # connections to each other rank, in the groups of one model
THREADS_PER_RANK: Final = 64  # autograd, gloo or NCCL, loader workers and pin memory
LOCKED_LEAST: Final = 64 * MIB  # of NCCL's buffers that an InfiniBand card reads by itself
THREADS_TO_CPUS: Final = 1.5  # some threads always sleep; above it they wait for each other


@dataclass(frozen=True)
class _Low:
    """One limit that is too low."""

    what: str
    value: float
    unit: str
    needed: float
    fix: str
    severity: Severity = Severity.WARNING


@launch_check("DD409", "resource-limits")
def resource_limits(launch: LaunchFacts) -> Iterator[Finding]:
    yield from _judged(launch, cpus=True)


@trace_check("DD409", "resource-limits")
def resource_limits_in_record(run: Analysis) -> Iterator[Finding]:
    from ddpdoctor.analysis.launched import recorded_launch

    yield from _judged(recorded_launch(run.run), cpus=False)


def _judged(launch: LaunchFacts, *, cpus: bool) -> Iterator[Finding]:
    measured = False
    for (host, _), processes in launch.by_host.items():
        measured = measured or any(p.limits.shm_bytes is not None for p in processes)
        ranks = max([len(processes), *(p.local_world_size or 1 for p in processes)])
        low = [*_shm(processes, ranks), *_counts(processes[0], launch, ranks)]
        low += _cpus(processes, ranks) if cpus else ()
        if low:
            yield _finding(host, processes, ranks, low)
    if not measured:
        raise NotEnoughData("the limits of no host are known")


def _shm(processes: list[Process], ranks: int) -> Iterator[_Low]:
    limits = processes[0].limits
    needed = SHM_PER_RANK * ranks
    fix = "start the container with --shm-size=8g or --ipc=host, or remount /dev/shm larger"
    if limits.shm_bytes is not None and limits.shm_bytes < needed:
        severity = _shm_severity(processes, limits.shm_bytes < SHM_PER_RANK)
        yield _Low(SHM, limits.shm_bytes / MIB, "MiB", needed / MIB, fix, severity)
    elif limits.shm_free_bytes is not None and limits.shm_free_bytes < SHM_LEAST_FREE:
        free = limits.shm_free_bytes / MIB
        clear = "remove what ended jobs left in /dev/shm"
        least = SHM_LEAST_FREE / MIB
        yield _Low(
            "free in /dev/shm", free, "MiB", least, clear, _shm_severity(processes, is_fatal=True)
        )


def _shm_severity(processes: list[Process], is_fatal: bool) -> Severity:
    """By who would use it: DataLoader workers, and NCCL."""
    workers = [process.loader_workers for process in processes]
    if any(workers):
        return Severity.ERROR if is_fatal else Severity.WARNING
    unused = None not in workers and all(process.backend == "gloo" for process in processes)
    return Severity.INFO if unused else Severity.WARNING


def _counts(process: Process, launch: LaunchFacts, ranks: int) -> Iterator[_Low]:
    limits = process.limits
    files = FILES_LEAST + FILES_PER_RANK * (launch.world_size or ranks)
    if limits.open_files is not None and limits.open_files < files:
        yield _Low("open files", limits.open_files, "", files, "raise it: ulimit -n 65536")
    threads = ranks * (THREADS_PER_RANK + (process.threads or 1))
    if limits.processes is not None and limits.processes < threads:
        raised = "raise ulimit -u, or the container's --pids-limit"
        yield _Low("processes and threads", limits.processes, "", threads, raised)
    locked = limits.locked_memory_bytes
    if process.network.infiniband and locked is not None and locked < LOCKED_LEAST:
        unlock = "raise it: ulimit -l unlimited, or --ulimit memlock=-1 for a container"
        yield _Low("locked memory", locked / MIB, "MiB", LOCKED_LEAST / MIB, unlock)


def _cpus(processes: list[Process], ranks: int) -> Iterator[_Low]:
    first = processes[0]
    quota = first.limits.cpu_quota
    if quota is not None and quota < ranks:
        yield _Low("CPUs' worth of time", quota, "", ranks, "give the container a CPU a rank")
    together = {number for process in processes for number in process.affinity}
    bound = bool(together) and len(together) < (first.limits.host_cpus or 0)
    if bound and len(together) < len(processes):
        pin = "bind each rank to CPUs of its own, or to none (srun --cpu-bind, taskset, numactl)"
        yield _Low("CPUs that its ranks are bound to", len(together), "", len(processes), pin)
    threads = [process.threads for process in processes if process.threads is not None]
    known = [process.cpus for process in processes if process.cpus is not None]
    if len(threads) != len(processes) or len(threads) < 2 or not known:
        return
    cpus = max(known)
    if sum(threads) > THREADS_TO_CPUS * cpus:
        set_it = f"set OMP_NUM_THREADS={max(1, cpus // ranks)}"
        yield _Low(f"CPUs, for {sum(threads)} threads of the ranks", cpus, "", sum(threads), set_it)


def _finding(host: str, processes: list[Process], ranks: int, low: list[_Low]) -> Finding:
    said = ", ".join(f"{each.what} {_number(each.value)} {each.unit}".rstrip() for each in low)
    fixes = "; ".join(dict.fromkeys(each.fix for each in low))
    return Finding(
        severity=max(each.severity for each in low),
        confidence=Confidence.LIKELY,
        message=(f"{host} is set too low for {ranks} rank{'s' * (ranks != 1)} on it: {said}"),
        fix=f"{fixes[0].upper()}{fixes[1:]}.",
        culprits=tuple(sorted({p.rank for p in processes if p.rank is not None})),
        hosts=(host,),
        evidence=tuple(
            Evidence(each.what, float(each.value), each.unit, float(each.needed)) for each in low
        ),
    )


def _number(value: float) -> str:
    return "unlimited" if value >= UNLIMITED else f"{value:.4g}"
