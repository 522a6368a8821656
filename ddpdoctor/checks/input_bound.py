"""DD301 input-bound: every rank waits for its batches.

What it measures
    Input wait: the time the training thread stands in the DataLoader's `__next__` (and in
    `__iter__`, where workers are started), as a share of the step. The rank with the least decides,
    so that one slow rank does not count here: that is DD101 late-rank.

Why it matters
    While a rank waits for a batch it computes nothing, and no faster device or network helps.

What to do
    With `num_workers=0` the training thread makes its batches itself: give it workers. With
    workers, give it more of them as long as CPUs are free, keep them alive between epochs, and
    make a sample cheaper (decode and resize beforehand, larger files, a faster disk).

When it is wrong
    A mean over few steps is moved by the start of an epoch, where workers are spawned; the
    evidence shows the median beside it. On a host whose CPUs are all taken a batch comes late for
    that reason alone: where the rank's own wait for a CPU could explain the input wait, it is
    said as possible and no more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

from ddpdoctor.analysis.model import Analysis, PhaseTimes
from ddpdoctor.analysis.waitmodel import WaitKind
from ddpdoctor.checks import NotEnoughData, need_steps, trace_check
from ddpdoctor.events import HotLine, LoaderInfo, Phase
from ddpdoctor.findings import Confidence, Evidence, Finding, Location, Severity
from ddpdoctor.tracefile import RankTrace
from ddpdoctor.wording import percent

STEPS_NEEDED: Final = 5
SHARE_WARNING: Final = (
    0.10  # reports of slow input begin to matter to people at a tenth of the step
)
SHARE_ERROR: Final = 0.30
MOST_WORKERS: Final = 16  # more is no advice to give from one measurement
LEAST_MS: Final = 2.0  # handing over a ready batch from a worker takes about 1 ms on a busy host
LEAST_BUSY_MS: Final = 8.0  # where CPUs are taken: a time slice for the worker, one for the rank
TAKEN_SHARE: Final = 0.5  # of the time some task waits for a CPU
STORAGE_SHARE: Final = 0.5  # of the input wait some task waits for storage
CPUS_ARE_TAKEN: Final = (
    "Other processes, too many workers or threads hold the CPUs: measure again when the host is "
    "quiet, or use fewer of them (num_workers, OMP_NUM_THREADS)."
)


@trace_check("DD301", "input-bound")
def input_bound(run: Analysis) -> Iterator[Finding]:
    need_steps(run, STEPS_NEEDED)
    loaders = {trace.info.rank: trace.loaders for trace in run.run.ranks}
    if not any(loaders.values()):
        raise NotEnoughData("no torch DataLoader feeds the training, so input wait is not measured")
    measured = {stats.rank: stats.times for stats in run.ranks if stats.times is not None}
    least = min(measured, key=lambda rank: measured[rank].input_ms)
    share = measured[least].input_ms / measured[least].step_ms
    if share < SHARE_WARNING or measured[least].input_ms < _least_ms(measured[least]):
        return
    if not _is_said_otherwise(run, measured[least]):
        yield _finding(run, measured, least)


def _least_ms(times: PhaseTimes) -> float:
    return LEAST_BUSY_MS if _cpus_are_taken(times) else LEAST_MS


def _cpus_are_taken(times: PhaseTimes) -> bool:
    """Whether tasks of the host wait for a CPU most of the time, loader workers among them."""
    if times.cpu_pressure_ms is None:
        return False
    return times.cpu_pressure_ms >= TAKEN_SHARE * times.step_ms


def _is_sure(times: PhaseTimes) -> bool:
    """Whether there is input wait enough beside what the rank waits for a CPU."""
    return (times.input_ms - (times.run_queue_ms or 0.0)) / times.step_ms >= SHARE_WARNING


def _is_said_otherwise(run: Analysis, times: PhaseTimes) -> bool:
    """Whether another check names the cause: CPUs that are taken, or input that grows."""
    kinds = {waiting.kind for waiting in run.waiting}
    grows = any(w.kind is WaitKind.DRIFT and w.term == Phase.INPUT.label for w in run.waiting)
    return grows or (not _is_sure(times) and bool(kinds & {WaitKind.QUEUE, WaitKind.QUOTA}))


def _finding(run: Analysis, measured: dict[int, PhaseTimes], least: int) -> Finding:
    times = measured[least]
    share = times.input_ms / times.step_ms
    queued_ms = times.run_queue_ms or 0.0
    sure = _is_sure(times)
    trace = next(trace for trace in run.run.ranks if trace.info.rank == least)
    loader = _main_loader(trace) if trace.loaders else None
    counted = run.tables.steps["sync"].between(run.steps.first_sync, run.steps.last_sync)
    own = run.tables.steps[counted & (run.tables.steps["rank"] == least)]
    return Finding(
        severity=_severity(share) if sure else Severity.INFO,
        confidence=Confidence.CERTAIN if sure else Confidence.POSSIBLE,
        message=(
            f"every rank waits for its input: at least {times.input_ms:.1f} ms of "
            f"{times.step_ms:.1f} ms a step ({percent(share)})"
            + ("" if sure else f"; but for {queued_ms:.1f} ms of a step it waits for a CPU")
        ),
        fix=_fix(loader, times, trace.info.cpus) if sure else CPUS_ARE_TAKEN,
        culprits=tuple(measured),
        hosts=tuple(sorted({stats.host for stats in run.ranks})),
        steps=((run.steps.first_sync, run.steps.last_sync),),
        evidence=(
            Evidence("least input wait of any rank", times.input_ms, "ms"),
            Evidence("its median over the steps", float(own["input_ns"].median()) / 1e6, "ms"),
            Evidence("share of the step", 100 * share, "%", 100 * SHARE_WARNING),
            Evidence("workers of the loader", loader.workers if loader else None),
            Evidence("CPUs that the rank may use", trace.info.cpus),
            Evidence("waiting for a CPU", times.run_queue_ms, "ms"),
            Evidence("some task of the host waits for a CPU", times.cpu_pressure_ms, "ms"),
            Evidence("some task waits for storage", times.io_pressure_ms, "ms"),
        ),
        lost_s=times.input_ms * run.steps.counted / 1e3,
        where=_where(least, trace.hot_lines),
    )


def _severity(share: float) -> Severity:
    return Severity.ERROR if share >= SHARE_ERROR else Severity.WARNING


def _main_loader(trace: RankTrace) -> LoaderInfo:
    """The one that gave the training most batches; the first where that is not known."""
    batches: Counter[int] = Counter()
    for epoch in trace.drawn:
        info = trace.loaders.get(epoch.loader)
        if info is not None:
            batches[info.loader] += epoch.drawn // (info.batch_size or 1)
    return max(trace.loaders.values(), key=lambda info: (batches[info.loader], -info.loader))


def _where(rank: int, lines: tuple[HotLine, ...]) -> tuple[Location, ...]:
    """The line that was seen most during input wait: in the dataset where there are no workers."""
    seen = [line for line in lines if line.phase is Phase.INPUT]
    if not seen:
        return ()
    site = max(seen, key=lambda line: line.samples).site
    return (Location(rank, site.file, site.line, site.function),)


def _fix(loader: LoaderInfo | None, times: PhaseTimes, cpus: int | None) -> str:
    rest_ms = times.step_ms - times.input_ms
    at_best = f" At best a step takes {rest_ms:.1f} ms instead of {times.step_ms:.1f} ms."
    if loader is None:
        return f"Give the loader more workers (num_workers), or cheaper samples.{at_best}"
    if loader.workers == 0:
        wanted = min(MOST_WORKERS, max(1, math.ceil(times.input_ms / max(rest_ms, 1e-3))))
        workers = f"DataLoader(..., num_workers={wanted}, persistent_workers=True)"
        return (
            f"The batches are made by the training thread itself: use {workers}"
            f"{_limit(wanted, cpus)}.{at_best}"
        )
    workers = "1 worker is" if loader.workers == 1 else f"{loader.workers} workers are"
    return (
        f"{workers} too slow for this step: {_what_workers_lack(times)}raise num_workers while "
        f"CPUs are free ({cpus if cpus is not None else 'unknown'} may be used by the rank) or "
        "while a sample waits for disk or network, set persistent_workers=True, and make a "
        f"sample cheaper to load.{at_best}"
    )


def _what_workers_lack(times: PhaseTimes) -> str:
    """Storage or CPUs, where the host's own counts say one of them and not the other."""
    waits_ms = times.io_pressure_ms
    for_storage = waits_ms is not None and waits_ms >= STORAGE_SHARE * times.input_ms
    if for_storage == _cpus_are_taken(times):
        return ""
    if for_storage:
        return (
            "they wait for storage (copy the data to a local disk, or store it in larger files); "
        )
    return "they find no free CPU (fewer threads a rank, by OMP_NUM_THREADS); then "


def _limit(wanted: int, cpus: int | None) -> str:
    if cpus is None or wanted < cpus:
        return ""
    return (
        f" (with {cpus} CPU{'' if cpus == 1 else 's'} for the rank so many help only where a "
        "sample waits for disk or network; where it computes, make it cheaper as well)"
    )
