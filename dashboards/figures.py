"""The charts of the overview. Each function is pure: data and theme in, a plotly figure out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ddpdoctor.analysis.buckets import BucketStats
from ddpdoctor.analysis.grid import InputMap, StepMap, StepSeries
from ddpdoctor.analysis.model import PhaseTimes, RankStats
from ddpdoctor.analysis.standings import PhaseExcesses
from ddpdoctor.dashboards.palette import Palette, palette_of
from ddpdoctor.events import Phase

ROW_PX = 26
CHART_PX = 300
MOST_CHART_PX = 640
MOST_HATCHED = 150  # steps: in narrower spikes the lines of a hatch come apart

_LABELS = {
    Phase.WAIT: "wait for other ranks",
    Phase.BLOCKED: "wait and transfer",
    Phase.BETWEEN: "between steps",
}
_STACK = (
    Phase.INPUT, Phase.FORWARD, Phase.BACKWARD, Phase.WAIT, Phase.TRANSFER, Phase.BLOCKED,
    Phase.OPTIMIZER, Phase.BETWEEN,
)  # fmt: skip


def label_of(phase: Phase) -> str:
    """The word of the legend."""
    return _LABELS.get(phase, phase.label)


def shown_phases(split: bool) -> tuple[Phase, ...]:
    """In the order of a step; wait and transfer are one where clocks cannot be compared."""
    hidden = (Phase.BLOCKED,) if split else (Phase.WAIT, Phase.TRANSFER)
    return tuple(phase for phase in _STACK if phase not in hidden)


def rank_bars(ranks: Sequence[RankStats], theme: str) -> go.Figure:
    """Where a step of each rank goes, in milliseconds."""
    palette = palette_of(theme)
    split = all(stats.times is None or stats.times.wait_ms is not None for stats in ranks)
    names = [f"rank {stats.rank}" for stats in ranks]
    figure = go.Figure(
        [
            go.Bar(
                name=label_of(phase),
                y=names,
                x=[_ms(stats.times, phase) for stats in ranks],
                orientation="h",
                marker=_marker(phase, palette),
                hovertemplate=f"%{{y}}: {label_of(phase)} %{{x:.2f}} ms<extra></extra>",
            )
            for phase in shown_phases(split)
        ]
    )
    height = min(MOST_CHART_PX, max(CHART_PX, 120 + ROW_PX * len(ranks)))
    _style(figure, palette, height)
    figure.update_layout(barmode="stack", bargap=0.25)
    figure.update_xaxes(title_text="ms a step", title_standoff=8)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure


def _ms(times: PhaseTimes | None, phase: Phase) -> float | None:
    value: float | None = getattr(times, f"{phase.label}_ms", None)
    return value


def _pattern(palette: Palette) -> dict[str, object]:
    """Waiting is hatched everywhere, so that it does not rest on the colour alone."""
    colour = palette.phases[Phase.WAIT]
    return {"shape": "/", "fgcolor": colour, "bgcolor": palette.ground, "size": 5, "solidity": 0.35}


def _marker(phase: Phase, palette: Palette) -> dict[str, object]:
    colour = palette.phases[phase]
    if phase is not Phase.WAIT:
        return {"color": colour, "line": {"width": 0}}
    return {"color": colour, "pattern": _pattern(palette), "line": {"width": 1, "color": colour}}


def excess_map(cells: StepMap, theme: str) -> go.Figure:
    """Rank by step: a rank's own time over that of the other ranks."""
    palette = palette_of(theme)
    figure = go.Figure(
        go.Heatmap(
            z=cells.excess_ms.astype(np.float32),
            x=cells.first_sync,
            y=cells.ranks,
            zmin=0,
            zmax=cells.top_ms,
            colorscale="Cividis",
            colorbar={
                "title": {"text": "ms over<br>others"},
                "thickness": 12,
                "outlinewidth": 0,
            },
            hovertemplate="rank %{y}, step %{x}: %{z:.2f} ms over the other ranks<extra></extra>",
        )
    )
    height = min(MOST_CHART_PX, max(CHART_PX, 90 + 12 * len(cells.ranks)))
    _style(figure, palette, height)
    figure.update_xaxes(title_text="step", title_standoff=8, showgrid=False, zeroline=False)
    figure.update_yaxes(
        title_text="rank", title_standoff=8, autorange="reversed", showgrid=False, zeroline=False,
        tickformat="d",
        **({"tickmode": "linear", "dtick": 1} if len(cells.ranks) <= 16 else {}),
    )  # fmt: skip
    return figure


def step_areas(series: StepSeries, theme: str) -> go.Figure:
    """Where each step goes, mean of the ranks."""
    palette = palette_of(theme)
    order = [phase for phase in _STACK if phase in series.phases]
    hatched = len(series.sync) <= MOST_HATCHED
    figure = go.Figure(
        [
            go.Scatter(
                name=label_of(phase),
                x=series.sync,
                y=series.phase_ms[series.phases.index(phase)],
                stackgroup="step",
                mode="lines",
                line={"width": 0, "color": palette.phases[phase]},
                fillcolor=palette.phases[phase],
                fillpattern=_pattern(palette) if phase is Phase.WAIT and hatched else None,
                hovertemplate=f"step %{{x}}: {label_of(phase)} %{{y:.2f}} ms<extra></extra>",
            )
            for phase in order
        ]
    )
    _style(figure, palette, CHART_PX)
    figure.update_xaxes(title_text="step", title_standoff=8, showgrid=False, zeroline=False)
    figure.update_yaxes(title_text="ms", title_standoff=8, rangemode="tozero")
    return figure


def excess_bars(excesses: PhaseExcesses, theme: str) -> go.Figure:
    """By phase and rank: what stands out of the ranks, and in which direction."""
    palette = palette_of(theme)
    figure = go.Figure(
        [
            go.Bar(
                name=label_of(phase),
                x=excesses.ranks,
                y=excesses.excess_ms[:, place],
                marker={"color": palette.phases[phase], "line": {"width": 0}},
                hovertemplate=f"rank %{{x}}: {label_of(phase)} %{{y:+.2f}} ms<extra></extra>",
            )
            for place, phase in enumerate(excesses.phases)
        ]
    )
    _style(figure, palette, CHART_PX)
    figure.update_layout(barmode="relative", bargap=0.15)
    figure.update_xaxes(
        title_text="rank", title_standoff=8, showgrid=False, zeroline=False, tickformat="d"
    )
    figure.update_yaxes(title_text="ms over the others", title_standoff=8)
    return figure


def bucket_bars(buckets: Sequence[BucketStats], theme: str) -> go.Figure:
    """Of each bucket, how long ranks wait for the last one, and how long it moves."""
    palette = palette_of(theme)
    names = [f"{each.bucket} · {each.nbytes / 2**20:.1f} MiB" for each in buckets]
    hidden = [
        None
        if each.transfer_ms is None or each.exposed_ms is None
        else max(0.0, each.transfer_ms - each.exposed_ms)
        for each in buckets
    ]
    parts = (
        ("wait for other ranks", [each.wait_ms for each in buckets], _marker(Phase.WAIT, palette)),
        ("transfer, exposed", [each.exposed_ms for each in buckets],
         _marker(Phase.TRANSFER, palette)),
        ("transfer, hidden", hidden, {"color": palette.line, "line": {"width": 0}}),
    )  # fmt: skip
    figure = go.Figure(
        [
            go.Bar(
                name=name, x=names, y=values, marker=marker,
                hovertemplate=f"bucket %{{x}}: {name} %{{y:.2f}} ms<extra></extra>",
            )
            for name, values, marker in parts
        ]
    )  # fmt: skip
    _style(figure, palette, CHART_PX)
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(title_text="bucket", title_standoff=8, showgrid=False, type="category")
    figure.update_yaxes(title_text="ms", title_standoff=8)
    return figure


def input_map(cells: InputMap, theme: str) -> go.Figure:
    """Rank by step: how long each waited for its input."""
    palette = palette_of(theme)
    figure = go.Figure(
        go.Heatmap(
            z=cells.input_ms.astype(np.float32),
            x=cells.first_sync,
            y=cells.ranks,
            zmin=0,
            zmax=cells.top_ms,
            colorscale="Cividis",
            colorbar={"title": {"text": "ms"}, "thickness": 12, "outlinewidth": 0},
            hovertemplate="rank %{y}, step %{x}: %{z:.2f} ms of input<extra></extra>",
        )
    )
    _style(figure, palette, min(MOST_CHART_PX, max(CHART_PX, 90 + 12 * len(cells.ranks))))
    figure.update_xaxes(title_text="step", title_standoff=8, showgrid=False, zeroline=False)
    figure.update_yaxes(
        title_text="rank", title_standoff=8, autorange="reversed", showgrid=False, zeroline=False,
        tickformat="d",
        **({"tickmode": "linear", "dtick": 1} if len(cells.ranks) <= 16 else {}),
    )  # fmt: skip
    return figure


def _style(figure: go.Figure, palette: Palette, height: int) -> None:
    axis = {
        "gridcolor": palette.line,
        "linecolor": palette.line,
        "zerolinecolor": palette.line,
        "automargin": True,
    }
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": palette.dim, "size": 12, "family": "system-ui, sans-serif"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        hoverlabel={"bgcolor": palette.ground, "font": {"color": palette.text}},
    )
    figure.update_xaxes(axis)
    figure.update_yaxes(axis)
