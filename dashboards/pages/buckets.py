"""What each bucket of DDP costs, and what the network makes of its bytes."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from ddpdoctor.analysis.model import Analysis, LinkFit
from ddpdoctor.dashboards.pages.frame import Relative
from ddpdoctor.dashboards.pages.overview import NOT_MEASURED
from ddpdoctor.dashboards.pages.sheet import chart, missing, page, panel, sheet_panel
from ddpdoctor.sheets import buckets_sheet

MOST_NAMES = 60  # of parameters that are listed


def buckets_page(analysis: Analysis, relative: Relative) -> Component:
    sheet = buckets_sheet(analysis)
    if not sheet.rows:
        return page("Buckets", missing("Buckets", sheet.missing), _link(analysis.link))
    return page(
        "Buckets",
        chart(
            "Where the time of each bucket goes",
            "exposed: while the training thread stood still",
            "bucket-bars",
            "Stacked bars: wait, exposed and hidden transfer of each bucket",
        ),
        sheet_panel(sheet, "buckets", relative, "the link shows the step with the longest spread"),
        _link(analysis.link),
        *_models(analysis),
    )


def _link(link: LinkFit | None) -> Component:
    if link is None:
        return missing(
            "Network",
            "Latency and bandwidth are not measured: that needs all-reduces of two or more ranks "
            "on clocks that can be compared.",
        )
    facts = (
        ("a small message takes", _or_not(link.alpha_ms, "{:.3f} ms")),
        ("bandwidth", _or_not(link.beta_gb_per_s, "{:.3f} GB/s")),
        ("bus bandwidth", _or_not(link.busbw_gb_per_s, "{:.3f} GB/s")),
        ("of the transfer, latency", _or_not(link.latency_share, "{:.0%}")),
        ("in transfer a step", f"{link.busy_ms:.2f} ms"),
        ("all-reduces a step", f"{link.collectives_per_step:.0f}"),
        ("bytes a step", f"{link.bytes_per_step / 2**20:.1f} MiB"),
    )
    rows = [html.Div([html.Dt(name), html.Dd(value)]) for name, value in facts]
    return panel("Network", "waiting for ranks taken out", html.Dl(rows, className="facts"))


def _or_not(value: float | None, shown: str) -> str:
    return NOT_MEASURED if value is None else shown.format(value)


def _models(analysis: Analysis) -> list[Component]:
    """Parameters by model: which bucket holds which is not recorded."""
    infos = {
        number: info
        for trace in analysis.run.ranks
        for number, info in sorted(trace.model.models.items())
    }
    return [
        panel(
            f"Parameters of {info.name}",
            f"{info.parameter_count} parameters, {info.elements:,} elements; which bucket holds "
            "which is not recorded",
            html.Ul(
                [
                    html.Li(f"{each.name}  {each.shape} {each.dtype}")
                    for each in info.parameters[:MOST_NAMES]
                ],
                className="names",
            ),
        )
        for info in infos.values()
    ]
