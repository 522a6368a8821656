"""What is measured in the page: jumps, frames while wheeling, the heap. Times are milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from statistics import median, quantiles

from playwright.sync_api import Page

PLACES = 6  # random ones for each kind of view
WHEEL_TICKS = 40
COMPLETE = "#timeline[data-state='complete']"

# From the change of the view to the first frame after the one that drew all of it.
JUMP = """({t0, t1, tall, top}) => new Promise((done) => {
  const it = document.getElementById("timeline").timeline;
  it.source.tiles.forget();
  it.source.spans = null;
  const began = performance.now();
  let first = null;
  it.view.tall = tall;
  it.view.set(t0, t1);
  it.layout.fitRows();
  it.view.scroll = top * it.layout.row;
  it.layout.clampScroll();
  it.canvas.dataset.state = "loading";
  it.redraw();
  const look = () => {
    first ??= performance.now() - began;
    if (it.canvas.dataset.state === "complete") {
      const shows = it.canvas.dataset.shows;
      requestAnimationFrame(() => done([first, performance.now() - began, shows]));
    } else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})"""

RECORD = """() => {
  const frames = window.frames_ = [];
  let last = performance.now();
  const next = (now) => {
    frames.push(now - last);
    last = now;
    window.frame_ = requestAnimationFrame(next);
  };
  window.frame_ = requestAnimationFrame(next);
}"""
STOP = "() => { cancelAnimationFrame(window.frame_); return window.frames_.slice(2); }"
HEAP_MB = "() => performance.memory.usedJSHeapSize / 1e6"


@dataclass(frozen=True)
class Jump:
    """A kind of view, and how long it took to be drawn at random places."""

    span_ms: float
    ranks: int
    tier: str
    first_ms: float  # median: something is drawn
    final_ms: float  # median: all is drawn
    worst_ms: float


@dataclass(frozen=True)
class Frames:
    """Intervals between frames."""

    p50_ms: float
    p95_ms: float
    worst_ms: float


def jumps(page: Page, views: list[tuple[float, int]], ranks: int, duration_ms: float) -> list[Jump]:
    random = Random(1)  # noqa: S311  places to look at
    return [_jump(page, span, rows, ranks, duration_ms, random) for span, rows in views]


def _jump(  # noqa: PLR0913
    page: Page, span: float, rows: int, ranks: int, duration_ms: float, random: Random
) -> Jump:
    taken = []
    for _ in range(PLACES):
        t0 = random.uniform(0, max(0.0, duration_ms - span))
        place = {
            "t0": t0, "t1": t0 + span, "tall": ranks / rows,
            "top": random.uniform(0, max(0, ranks - rows)),
        }  # fmt: skip
        taken.append(page.evaluate(JUMP, place))
        page.wait_for_timeout(100)
    firsts, finals, tiers = zip(*taken, strict=True)
    return Jump(span, rows, tiers[-1], median(firsts), median(finals), max(finals))


def wheel(page: Page) -> Frames:
    """Zooms in and out again in the middle of the rows."""
    page.hover("#timeline", position={"x": 600, "y": 400})
    page.evaluate(f"void ({RECORD})()")
    for tick in range(WHEEL_TICKS):
        page.mouse.wheel(0, -120 if tick < WHEEL_TICKS / 2 else 120)
        page.wait_for_timeout(25)
    intervals = page.evaluate(STOP)
    cuts = quantiles(intervals, n=100)
    return Frames(median(intervals), cuts[94], max(intervals))


def heap_mb(page: Page) -> float:
    return float(page.evaluate(HEAP_MB))
