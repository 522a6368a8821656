"""Reports for the tests of the dashboard, made of computed runs."""

from __future__ import annotations

from dataclasses import replace

from ddpdoctor.analysis import Analysis, analyze
from ddpdoctor.checks import run_checks
from ddpdoctor.events import Kind, Part
from ddpdoctor.report import Report, run_report
from ddpdoctor.tracefile import RankTrace, Run
from tests.builders import MS, START_NS, StepTimes, simulate, with_ranks, with_records

LATE_RANK = 2
LATE_MS = 30.0


def late_in_backward(rank: int, step: int) -> StepTimes:
    return StepTimes(backward=10.0 + (LATE_MS if rank == LATE_RANK else 0.0))


def late_run(ranks: int = 4, steps: int = 40) -> Run:
    """Rank 2 is late in every backward."""
    return simulate(late_in_backward, ranks, steps)


def late_analysis(ranks: int = 4, steps: int = 40) -> Analysis:
    return analyze(late_run(ranks, steps))


def report_on(run: Run) -> Report:
    analysis = analyze(run)
    return run_report(analysis, run_checks(analysis))


def late_report() -> Report:
    return report_on(late_run())


def marked_run() -> Run:
    """On each rank a span around all, with another in it at its begin, and a collection."""

    def marks(trace: RankTrace) -> list[dict[str, int]]:
        epoch, loss = (1, 2) if trace.info.rank == 0 else (2, 1)

        def span(name: int, ms: int) -> dict[str, int]:
            end = START_NS + ms * MS
            return {"kind": Kind.NAMED, "site": name, "begin_ns": START_NS, "end_ns": end}

        pause = {"kind": Kind.PART, "code": Part.GC_PAUSE, "peer": 2, "nbytes": 9 * MS}
        at = {"begin_ns": START_NS + 20 * MS, "end_ns": START_NS + 29 * MS}
        return [span(epoch, 600), span(loss, 10), pause | at]

    def name(trace: RankTrace) -> RankTrace:
        names = ("<b>epoch</b>", "loss")
        texts = names if trace.info.rank == 0 else names[::-1]
        return replace(trace, names=dict(enumerate(texts, 1)))

    return with_ranks(with_records(late_run(ranks=2), marks), name)
