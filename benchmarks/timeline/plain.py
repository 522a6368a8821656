"""The same windows drawn by plotly as plain bars: what the canvas is held against."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from statistics import median

from playwright.sync_api import Page
from plotly.offline import get_plotlyjs

from benchmarks.timeline.browser import PLACES

# From the request to the first frame after all bars were drawn, as a pan or a zoom needs it.
DRAW = """async ({ t0, t1, r0, r1 }) => {
  const { source } = document.getElementById("timeline").timeline;
  const made = () => document.body.appendChild(document.createElement("div"));
  const box = document.getElementById("plain") ?? made();
  box.id = "plain";
  box.style.cssText = "position: fixed; inset: 0; z-index: 99; background: white";
  const began = performance.now();
  const columns = await source.columns(`window?t0=${t0}&t1=${t1}&r0=${r0}&r1=${r1}`);
  const traces = new Map();
  const add = (kind, rank, begin, end) => {
    const none = { type: "bar", orientation: "h", base: [], x: [], y: [] };
    if (!traces.has(kind)) traces.set(kind, none);
    const { base, x, y } = traces.get(kind);
    base.push(begin);
    x.push(end - begin);
    y.push(rank);
  };
  for (let i = 0; i < columns.span_id.length; i++) {
    add(columns.span_phase[i], columns.span_rank[i], columns.span_begin[i], columns.span_end[i]);
  }
  for (let i = 0; i < columns.call_id.length; i++) {
    add("calls", columns.call_rank[i] + 0.5, columns.call_begin[i], columns.call_end[i]);
  }
  const layout = { barmode: "overlay", bargap: 0.5, xaxis: { range: [t0, t1] }, showlegend: false };
  await Plotly.react(box, [...traces.values()], layout);
  await new Promise(requestAnimationFrame);
  return [performance.now() - began, columns.span_id.length + columns.call_id.length];
}"""


@dataclass(frozen=True)
class Plain:
    """A kind of view in plotly: how many bars it has, and how long they take."""

    span_ms: float
    ranks: int
    bars: int  # median
    ms: float  # median


def plain_views(
    page: Page, views: list[tuple[float, int]], ranks: int, duration_ms: float
) -> list[Plain]:
    """At random places, as the jumps; the page must let scripts in."""
    page.evaluate(get_plotlyjs())
    random = Random(1)  # noqa: S311  places to look at
    return [_plain(page, span, rows, ranks, duration_ms, random) for span, rows in views]


def _plain(  # noqa: PLR0913
    page: Page, span: float, rows: int, ranks: int, duration_ms: float, random: Random
) -> Plain:
    taken = []
    for _ in range(PLACES):
        t0 = random.uniform(0, max(0.0, duration_ms - span))
        first = random.randrange(max(1, ranks - rows + 1))
        place = {"t0": t0, "t1": t0 + span, "r0": first, "r1": first + rows}
        taken.append(page.evaluate(DRAW, place))
    times, bars = zip(*taken, strict=True)
    return Plain(span, rows, int(median(bars)), median(times))
