"""Runs without training whose ranks wait: held up in some steps, or with batches of some size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby

from ddpdoctor.analysis import analyze
from ddpdoctor.checks import Outcome, run_check, trace_checks
from ddpdoctor.events import Kind, Part, Phase
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.modelevents import BatchRun, ModelFacts
from ddpdoctor.tracefile import RankTrace, Records, Run
from tests.builders import MS, StepTimes, with_ranks, with_records

PARTS = frozenset({Part.RUN_QUEUE, Part.GC, Part.THROTTLED})
CODES = ("DD1", "DD301")
Cells = Callable[[int, int], float]  # of rank and step


def usual(_rank: int, _step: int) -> StepTimes:
    return StepTimes()


def slower(phase: str, cells: Cells) -> Callable[[int, int], StepTimes]:
    """Usual times, of which one phase takes so many milliseconds more."""

    def times(rank: int, step: int) -> StepTimes:
        own = StepTimes()
        return replace(own, **{phase: getattr(own, phase) + cells(rank, step)})

    return times


def counted(run: Run) -> Run:
    """As recorded where collections and quotas are counted."""
    return with_ranks(run, lambda trace: replace(trace, parts=PARTS))


def with_queue(run: Run, cells: Cells) -> Run:
    """Milliseconds of each step for which the rank waited for a CPU."""

    def queued(trace: RankTrace) -> RankTrace:
        detail = trace.detail.copy()
        for index in [i for i, kind in enumerate(detail["kind"]) if kind == Kind.STEP]:
            ms = cells(trace.info.rank, int(detail["step"][index]))
            detail["nbytes"][index] = int(ms * MS)
        return replace(trace, detail=detail)

    return counted(with_ranks(run, queued))


def with_quota(run: Run, cells: Cells) -> Run:
    """A quota stopped the rank for so long in each step."""

    def stopped(trace: RankTrace) -> list[dict[str, int]]:
        return [
            _part(step, Part.THROTTLED, cells(trace.info.rank, int(step["step"])))
            for step in trace.detail[trace.detail["kind"] == Kind.STEP]
        ]

    return with_records(with_queue(run, cells), stopped)


def with_collections(run: Run, lengths_ms: Mapping[tuple[int, int], float]) -> Run:
    """Collections of garbage by rank and step, at the beginning of the step's forward."""

    def collected(trace: RankTrace) -> list[dict[str, int]]:
        rows = []
        for forward in _forwards(trace):
            step = int(forward["step"])
            ms = lengths_ms.get((trace.info.rank, step), 0.0)
            if ms:
                begin = int(forward["begin_ns"])
                rows.append(_part(forward, Part.GC, ms))
                rows.append(
                    _part(forward, Part.GC_PAUSE, ms)
                    | {"begin_ns": begin, "end_ns": begin + int(ms * MS), "peer": 2}
                )
        return rows

    return counted(with_records(run, collected))


def _forwards(trace: RankTrace) -> Records:
    spans = trace.detail[trace.detail["kind"] == Kind.SPAN]
    return spans[spans["code"] == Phase.FORWARD]


def _part(record: Records, which: Part, ms: float) -> dict[str, int]:
    return {
        "kind": Kind.PART, "code": which, "step": int(record["step"]), "nbytes": int(ms * MS),
        "begin_ns": int(record["begin_ns"]), "end_ns": int(record["end_ns"]),
    }  # fmt: skip


def with_batches(run: Run, elements: Callable[[int, int], int], samples: int = 8) -> Run:
    """Batches of so many elements by rank and step, as the recorder puts equal ones together."""

    def sized(trace: RankTrace) -> RankTrace:
        steps = range(int(trace.detail["step"].max()) + 1)
        runs: list[BatchRun] = []
        for size, group in groupby(steps, lambda step: elements(trace.info.rank, step)):
            own = list(group)
            runs.append(BatchRun(own[0] + 1, len(own), samples, size, 1))
        return replace(trace, model=ModelFacts(batches={0: runs}))

    return with_ranks(run, sized)


def found_in(run: Run, at_least: Severity = Severity.WARNING) -> dict[str, tuple[Finding, ...]]:
    """What the checks on waiting and on input say of a run, by code."""
    said = {}
    analysis = analyze(run)
    for check in [check for check in trace_checks() if check.code.startswith(CODES)]:
        result = run_check(check, analysis)
        assert result.outcome is not Outcome.CRASH, result
        loud = tuple(f for f in result.findings if f.severity >= at_least)
        if loud:
            said[result.code] = loud
    return said
