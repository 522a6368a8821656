"""Measures the timeline: `python -m benchmarks.timeline [--json] [--size 1024x1000]`.

Prints for each size the first picture, jumps to random places, frames while wheeling, memory, and
how long a plain plotly timeline takes for the close ones of the same views.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.timeline.browser import COMPLETE, Frames, Jump, heap_mb, jumps, wheel
from benchmarks.timeline.plain import Plain, plain_views

SIZES = ("8x500", "64x10000", "1024x1000")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-background-networking", "--enable-precise-memory-info",
)  # fmt: skip
SPANS_MS = (0.5, 0.1, 0.03, 0.01, 0.001)  # shares of the run, with all ranks on screen
CLOSE = ((410.0, 32), (40.0, 16))  # milliseconds and ranks of views of single spans


@dataclass(frozen=True)
class Measured:
    """One size of run."""

    ranks: int
    steps: int
    spans: int
    first_picture_ms: float
    reload_ms: float
    jumps: tuple[Jump, ...]
    wheel_whole: Frames
    wheel_close: Frames
    heap_mb: float
    server_mb: float
    plain: tuple[Plain, ...]  # the close views, drawn by plotly

    def ratio(self, plain: Plain) -> float:
        """How many times as long as the canvas plotly takes for a view."""
        (own,) = [j for j in self.jumps if (j.span_ms, j.ranks) == (plain.span_ms, plain.ranks)]
        return plain.ms / own.final_ms


@contextmanager
def served(ranks: int, steps: int) -> Iterator[tuple[str, int]]:
    """Address and process id of a dashboard of a generated run."""
    command = [sys.executable, "-m", "benchmarks.timeline.serve", str(ranks), str(steps)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stdout or ())
        yield next(lines).strip(), process.pid
    finally:
        process.terminate()
        process.wait(timeout=20)


def measure(browser: Browser, ranks: int, steps: int) -> Measured:
    with served(ranks, steps) as (address, pid):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        first = _opened(page, lambda: page.goto(f"{address}timeline"))
        again = _opened(page, page.reload)
        meta = page.evaluate("() => document.getElementById('timeline').timeline.source.meta")
        duration = float(meta["duration"])
        whole_run = wheel(page)
        views = [(duration, ranks)] + [(duration * part, ranks) for part in SPANS_MS]
        near = [(span, min(rows, ranks)) for span, rows in CLOSE]
        views += near
        taken = jumps(page, views, ranks, duration)
        close = wheel(page)
        measured = Measured(
            ranks, steps, meta["spans"] + meta["calls"], first, again, tuple(taken), whole_run,
            close, heap_mb(page), _resident_mb(pid),
            tuple(plain_views(page, near, ranks, duration)),
        )  # fmt: skip
        page.close()
    return measured


def _opened(page: Page, go: Callable[[], object]) -> float:
    began = time.perf_counter()
    go()
    page.wait_for_selector(COMPLETE)
    return (time.perf_counter() - began) * 1000


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1000


def shown(measured: Measured) -> str:
    lines = [
        f"{measured.ranks} ranks x {measured.steps} steps, {measured.spans:,} spans: "
        f"first picture {measured.first_picture_ms:.0f} ms, reload {measured.reload_ms:.0f} ms, "
        f"heap {measured.heap_mb:.0f} MB, server {measured.server_mb:.0f} MB",
        f"  {'view':>22}  {'tier':8} {'first':>8} {'final':>8} {'worst':>8}",
    ]
    for jump in measured.jumps:
        view = f"{jump.span_ms / 1000:.3f} s, {jump.ranks} ranks"
        lines.append(
            f"  {view:>22}  {jump.tier:8} {jump.first_ms:8.0f} {jump.final_ms:8.0f} "
            f"{jump.worst_ms:8.0f}"
        )
    for name, frames in (("whole run", measured.wheel_whole), ("close", measured.wheel_close)):
        lines.append(
            f"  wheel, {name}: frame p50 {frames.p50_ms:.1f}, p95 {frames.p95_ms:.1f}, "
            f"worst {frames.worst_ms:.1f} ms"
        )
    lines += [
        f"  plotly, {plain.span_ms / 1000:.3f} s, {plain.ranks} ranks: {plain.bars} bars in "
        f"{plain.ms:.0f} ms, {measured.ratio(plain):.1f} times as long"
        for plain in measured.plain
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", action="append", help="RANKSxSTEPS; may be repeated")
    chosen = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(FLAGS)
        )
        results = []
        for size in chosen.size or SIZES:
            ranks, steps = map(int, size.split("x"))
            results.append(measure(browser, ranks, steps))
            if not chosen.json:
                print(shown(results[-1]), flush=True)
        browser.close()
    if chosen.json:
        print(json.dumps([asdict(each) for each in results], indent=2))


if __name__ == "__main__":
    main()
