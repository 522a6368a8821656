"""From a finding to the place in the timeline where it shows, as a query string."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

import numpy as np

from ddpdoctor.analysis.grid import StepGrid, place_of
from ddpdoctor.analysis.timeline import Timeline
from ddpdoctor.checks import CheckResult
from ddpdoctor.findings import Finding
from ddpdoctor.report import Report

PAGES_OF: Final = {  # by the group of a check's code: where its numbers are
    "DD1": ("/ranks", "Ranks"),
    "DD2": ("/buckets", "Buckets"),
    "DD3": ("/data-loading", "Data"),
    "DD9": ("/stacks", "Stacks"),
}
BEFORE_HANG: Final = 0.25  # of the time that the ranks stand: the steps before it
VIEW_KEYS: Final = ("t0", "t1", "rank", "sync", "sel")  # what the timeline reads from a link


@dataclass(frozen=True)
class PlacedFinding:
    """A finding with its id in links, and its place; None where it has none in time."""

    id: str
    result: CheckResult
    finding: Finding
    query: str | None

    @property
    def hangs(self) -> bool:
        """Whether it is about how the run came to stand still, or ended."""
        return self.result.code.startswith("DD9")

    @property
    def page(self) -> tuple[str, str] | None:
        """Path and name of the page with its numbers."""
        return PAGES_OF.get(self.result.code[:3])


def placed_findings(report: Report, timeline: Timeline) -> list[PlacedFinding]:
    """In the report's order: the one to read first in front."""
    return list(_placed(report, timeline))


def _placed(report: Report, timeline: Timeline) -> Iterator[PlacedFinding]:
    for result, finding in report.findings:
        key = f"{result.code}.{result.findings.index(finding)}"
        query = _view_of(finding) or _derived(finding, timeline.grid)
        if result.code.startswith("DD9") and timeline.stands:
            query = _end_of_run(finding, timeline)
        linked = urlencode({**query, "finding": key}) if query else None
        yield PlacedFinding(key, result, finding, linked)


def _view_of(finding: Finding) -> dict[str, str]:
    """What the check itself marked; `step` is taken for `sync`, by which ranks are aligned."""
    pairs = parse_qsl((finding.view or "").lstrip("?"))
    renamed = (("sync" if key == "step" else key, value) for key, value in pairs)
    return {key: value for key, value in renamed if key in VIEW_KEYS}


def _derived(finding: Finding, grid: StepGrid) -> dict[str, str]:
    sync = place_of(grid, finding.culprits, finding.steps)
    if sync is None:
        return {}
    rank = {"rank": str(finding.culprits[0])} if finding.culprits else {}
    return {**rank, "sync": str(sync)}


def _end_of_run(finding: Finding, timeline: Timeline) -> dict[str, str]:
    """Of a hang: from the last steps on to where the ranks stand."""
    ends = timeline.grid.end_ms
    last = float(np.nanmax(ends)) if np.isfinite(ends).any() else 0.0
    stood = timeline.duration_ms - last
    rank = {"rank": str(finding.culprits[0])} if finding.culprits else {}
    return {
        **rank,
        "t0": f"{max(0.0, last - stood * BEFORE_HANG):.3f}",
        "t1": f"{timeline.duration_ms + stood * BEFORE_HANG / 5:.3f}",
    }
