"""What the pages and the canvas show of one report, each part made once and when it is wanted."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ddpdoctor.analysis.bucketed import BucketParameters, bucket_parameters
from ddpdoctor.analysis.buckets import BucketStats, bucket_stats
from ddpdoctor.analysis.grid import InputMap, StepMap, StepSeries, input_map, pooled, step_series
from ddpdoctor.analysis.model import Analysis
from ddpdoctor.analysis.tiles import Bytes, Changes, blame_by_row, phase_changes
from ddpdoctor.analysis.timeline import Timeline, build_timeline
from ddpdoctor.dashboards.links import PlacedFinding, placed_findings
from ddpdoctor.errors import NotARun
from ddpdoctor.findings import Severity
from ddpdoctor.following import course_unseen
from ddpdoctor.report import Report

MAP_COLUMNS = 400  # of the heat map: about as many as it has pixels for


class Shown:
    """One report, ready to be drawn. `timeline` is built where none is given."""

    def __init__(self, report: Report, timeline: Timeline | None = None) -> None:
        if report.analysis is None:
            raise NotARun(f"{report.name}: the dashboard shows recorded runs, and this is none")
        self.report = report
        self.analysis: Analysis = report.analysis
        self.timeline = timeline or build_timeline(report.analysis)
        self.findings: list[PlacedFinding] = placed_findings(report, self.timeline)

    @cached_property
    def culprits(self) -> frozenset[int]:
        """The ranks that findings blame; what a finding only informs of blames nobody."""
        told = (p.finding for p in self.findings if p.finding.severity is not Severity.INFO)
        return frozenset(rank for finding in told for rank in finding.culprits)

    @cached_property
    def series(self) -> StepSeries:
        return step_series(self.timeline.grid)

    @cached_property
    def map(self) -> StepMap:
        return pooled(self.timeline.grid, MAP_COLUMNS)

    @cached_property
    def inputs(self) -> InputMap:
        return input_map(self.timeline.grid, MAP_COLUMNS)

    @cached_property
    def buckets(self) -> tuple[BucketStats, ...]:
        return bucket_stats(self.analysis)

    @cached_property
    def bucket_parameters(self) -> tuple[BucketParameters, ...]:
        return bucket_parameters(self.analysis.models, self.buckets)

    @cached_property
    def blame(self) -> Bytes:
        return blame_by_row(self.timeline)

    @cached_property
    def changes(self) -> Changes:
        return phase_changes(self.timeline, self.blame)

    def columns_within(self, begin_ms: float, end_ms: float) -> slice:
        """The steps of the job that overlap this stretch of time, as columns of the grid."""
        first = int(np.searchsorted(self.series.end_ms, begin_ms))
        last = int(np.searchsorted(self.series.begin_ms, end_ms, "right"))
        return slice(first, max(first, last))

    def prepare(self) -> None:
        """What the first look at a large run would have to wait for."""
        _ = self.series, self.changes, self.timeline.span_rows, self.timeline.call_rows

    @property
    def split(self) -> bool:
        return self.analysis.tables.clock.comparable

    @property
    def facts(self) -> str:
        info = self.analysis.run.info
        return f"attempt {info.attempt} · {info.world_size} ranks · {info.backend}"


class Current:
    """What is shown now. A run that grows is shown anew, under the next `version`."""

    def __init__(self, report: Report, timeline: Timeline | None = None) -> None:
        self.shown = Shown(report, timeline)
        self.shown.prepare()
        self.version = 0
        self.course = course_unseen(self.shown.analysis.run)
        self.still_s = 0.0

    def show(self, report: Report) -> None:
        shown = Shown(report)
        shown.prepare()
        self.shown = shown  # in one step: requests are answered by other threads
        self.version += 1
