"""What each bucket of DDP costs, and what the network makes of its bytes."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from ddpdoctor.analysis.bucketed import BucketParameters
from ddpdoctor.analysis.model import Analysis, LinkFit
from ddpdoctor.dashboards.pages.frame import Relative
from ddpdoctor.dashboards.pages.overview import NOT_MEASURED
from ddpdoctor.dashboards.pages.sheet import chart, missing, page, panel, sheet_panel
from ddpdoctor.sheets import buckets_sheet

MOST_NAMES = 60  # of parameters that are listed where no bucket is known to hold them
FEW_NAMES = 12  # of a bucket, that are shown at once


def buckets_page(
    analysis: Analysis, held: Sequence[BucketParameters], relative: Relative
) -> Component:
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
        *_parameters(analysis, held),
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


def _parameters(analysis: Analysis, held: Sequence[BucketParameters]) -> list[Component]:
    """By bucket where the sizes tell which holds which, else by model."""
    if not held:
        return _models(analysis)
    return [
        panel(
            "Parameters of the buckets",
            "in the order of their gradients, by the sizes of both",
            *(_held(each) for each in held),
        )
    ]


def _held(part: BucketParameters) -> Component:
    count = f"{len(part.names)} parameters" if len(part.names) > 1 else "1 parameter"
    title = f"Bucket {part.bucket} of {part.model}: {count}, {part.nbytes / 2**20:.1f} MiB"
    names = html.Ul([html.Li(name) for name in part.names], className="names")
    return html.Details([html.Summary(title), names], open=len(part.names) <= FEW_NAMES)


def _models(analysis: Analysis) -> list[Component]:
    """Parameters by model."""
    infos = {
        number: info
        for trace in analysis.run.ranks
        for number, info in sorted(trace.model.models.items())
    }
    return [
        panel(
            f"Parameters of {info.name}",
            f"{info.parameter_count} parameters, {info.elements:,} elements; which bucket holds "
            "which is not told by their sizes",
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
