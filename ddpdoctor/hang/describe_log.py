"""Sentences and evidence on what the log of a job says."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from itertools import islice

from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.hang.joblog import NOT_TOLD, Failure, JobLog, TimedOut
from ddpdoctor.wording import rank_list

MOST_TOLD = 12  # ranks of which the evidence tells the end; a thousand say the same


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def finding(
    log: JobLog, culprits: Sequence[int], message: str, fix: str, confidence: Confidence
) -> Finding:
    """An error with what every finding on logs tells."""
    failures = {each.rank: each for each in log.failures}
    others = [each for each in log.failures if each.rank not in culprits]
    named = [failures[rank] for rank in culprits if rank in failures]
    told = [each.rank for each in log.timed_out]
    return Finding(
        severity=Severity.ERROR,
        confidence=confidence,
        message=message,
        fix=fix,
        culprits=tuple(culprits),
        victims=tuple(sorted({*(each.rank for each in others), *told} - set(culprits))),
        evidence=tuple(_evidence(log, [*named, *others])),
        where=tuple(
            Location(each.rank, each.site.file, each.site.line, each.site.function)
            for each in islice(named, MOST_TOLD)
            if each.site
        ),
    )


def end_of(failure: Failure) -> str:
    """`ended with ValueError at train.py:12`, `was killed by SIGKILL`."""
    at = f" at {failure.site.text}" if failure.site else ""
    if failure.error:
        return f"ended with {failure.error}{at}"
    if failure.signal:
        return f"was killed by {signal_name(failure.signal)}"
    return f"ended with exit status {failure.status}"


def stood(together: Sequence[Failure]) -> str:
    """`ranks 0 and 1 gave up all_reduce at train.py:12`, or lost the others there."""
    first = together[0]
    ranks = [each.rank for each in together if each.rank != NOT_TOLD]
    who = rank_list(ranks) if len(ranks) == len(together) else "a rank that is not named"
    did = "gave up" if any(each.gave_up for each in together) else "lost the others in"
    at = f" at {first.site.text}" if first.site else ""
    return f"{who} {did} {first.call or 'its call'}{at}"


def timeouts(calls: Sequence[TimedOut]) -> str:
    """`ranks 0 and 1 gave up all_reduce (number 7) of 4 elements after 600 s; ...`."""
    ranks: dict[str, list[int]] = {}
    for each in calls:
        after = "" if each.after_ms is None else f" after {each.after_ms / 1000:.0f} s"
        ranks.setdefault(f"{each.text}{after}", []).append(each.rank)
    return "; ".join(f"{rank_list(own)} gave up {text}" for text, own in ranks.items())


MORE_MEMORY = (
    "Give the job more memory, or let it need less: fewer DataLoader workers, smaller batches, "
    "data that is mapped and not copied into every rank. "
    "`memory.peak` of the control group tells how much was used."
)


def fix_of(first: Failure, log: JobLog) -> str:
    """What to do about the end that came first."""
    if first.is_device_memory:
        return (
            "The device's memory ran out on this rank: smaller batches, gradient accumulation, or "
            "shorter samples. If only some ranks meet long samples, sort or bucket them by length."
        )
    if first.is_loader:
        return (
            "Look at /dev/shm (`df -h /dev/shm`; docker run --shm-size=8g) and at the memory of "
            "the host: a DataLoader worker was killed. Fewer workers need less."
        )
    if first.signal == signal.SIGKILL or first.is_memory or log.killed_for_memory:
        told = "" if log.killed_for_memory or first.is_memory else (
            "Nobody but the kernel's out-of-memory killer, the scheduler or a person sends "
            "SIGKILL: look at `dmesg | grep -i oom` on that host. "
        )  # fmt: skip
        return told + MORE_MEMORY
    if first.rank == NOT_TOLD:
        return "Mend this error; it came first. What the others say follows."
    if first.error:
        return f"Mend this error on rank {first.rank}; it came first. What the others say follows."
    return f"Read the last lines that rank {first.rank} wrote before it ended."


def _evidence(log: JobLog, failures: Sequence[Failure]) -> Iterator[Evidence]:
    for each in failures[:MOST_TOLD]:
        said = f"{each.error}: {each.message}".removeprefix(": ") if each.error else end_of(each)
        status = f", exit status {each.status}" if each.error and each.status else ""
        at = f", {each.at}" if each.at else ""
        follows = ", which follows from another's end" if each.is_consequence else ""
        yield Evidence(f"rank {each.rank}", f"{said}{status}{at}{follows}")
    if len(failures) > MOST_TOLD:
        yield Evidence("more ranks that failed", len(failures) - MOST_TOLD)
    if log.timed_out:
        yield Evidence("watchdog", timeouts(log.timed_out[:MOST_TOLD]))
    for last in log.enqueued[:MOST_TOLD]:
        yield Evidence(
            f"rank {last.rank}",
            f"last call that it made: number {last.enqueued}, completed: number {last.completed}",
        )
    for line in log.killed_for_memory[:3]:
        yield Evidence("kernel or scheduler", line)
