"""The ranks and hosts beside each other."""

from __future__ import annotations

from dash.development.base_component import Component

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.dashboards.pages.frame import Relative
from ddpdoctor.dashboards.pages.sheet import chart, missing, page, sheet_panel
from ddpdoctor.sheets import hosts_sheet, ranks_sheet

NO_STEPS = (
    "No step was recorded on all ranks, so there is nothing to compare. A run of a few steps ends "
    "within its warm-up; a rank whose file is missing leaves the others alone."
)


def ranks_page(analysis: Analysis, culprits: frozenset[int], relative: Relative) -> Component:
    if not analysis.times:
        return page("Ranks", missing("Time by rank", NO_STEPS))
    return page(
        "Ranks",
        chart(
            "What each rank takes over the others",
            "a bar up is time that the others may wait for",
            "excess-bars",
            "Bars: milliseconds a step of each rank over the median of the others, by phase",
        ),
        sheet_panel(
            ranks_sheet(analysis), "ranks", relative, "means of the counted steps", culprits
        ),
        sheet_panel(hosts_sheet(analysis), "hosts", relative),
    )
