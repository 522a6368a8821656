"""What feeds the training: input wait, loaders, samples in common, sizes of batches."""

from __future__ import annotations

from dash.development.base_component import Component

from ddpdoctor.analysis.model import Analysis
from ddpdoctor.dashboards.pages.frame import Relative
from ddpdoctor.dashboards.pages.ranks import NO_STEPS
from ddpdoctor.dashboards.pages.sheet import chart, missing, page, sheet_panel
from ddpdoctor.sheets import batches_sheet, draws_sheet, loaders_sheet


def data_page(analysis: Analysis, relative: Relative) -> Component:
    if analysis.times:
        wait = chart(
            "Input wait",
            "a click opens the timeline",
            "input-map",
            "Heat map of rank by step: milliseconds that each waited for its input",
        )
    else:
        wait = missing("Input wait", NO_STEPS)
    return page(
        "Data",
        wait,
        sheet_panel(loaders_sheet(analysis), "loaders", relative),
        sheet_panel(draws_sheet(analysis), "samples", relative, "the worst epoch of each pair"),
        sheet_panel(batches_sheet(analysis), "batches", relative),
    )
