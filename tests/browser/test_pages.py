"""Every page on every sample, the prefix of a proxy, a broken rank file, and files given away."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.serving import make_server

from ddpdoctor import analyze, load_run, run_checks
from ddpdoctor.dashboards import create_app
from ddpdoctor.report import Report, run_report
from ddpdoctor.samples import sample_folder, sample_names
from tests.browser.conftest import serving
from tests.browser.test_dashboard import COMPLETE, GUTTER_PX, box_of, open_timeline, until

pytestmark = pytest.mark.job

PAGES = {
    "ranks": "Ranks", "buckets": "Buckets", "data-loading": "Data", "stacks": "Stacks",
    "checks": "Checks",
}  # fmt: skip
MOST_CLICKS = 3


def report_of(folder: Path) -> Report:
    analysis = analyze(load_run(folder))
    return run_report(analysis, run_checks(analysis))


@pytest.fixture(scope="module")
def late() -> Iterator[str]:
    with serving(report_of(sample_folder("late-rank"))) as address:
        yield address


@pytest.mark.parametrize("sample", sample_names())
def test_every_page_of_a_sample(page: Page, sample: str) -> None:
    """From page to page by the links in the header; each has its title and says what it lacks."""
    with serving(report_of(sample_folder(sample))) as address:
        page.goto(address)
        page.wait_for_selector("#step-areas .main-svg")
        for path, title in PAGES.items():
            page.locator("nav").get_by_role("link", name=title, exact=True).click()
            page.wait_for_url(f"**/{path}")
            expect(page.locator("h1")).to_have_text(title)
            expect(page.locator(".panel").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 1280


# where the longest span of the rank is, in the view that a finding opens
LONGEST = """() => {
  const { layout, source, view } = document.getElementById("timeline").timeline;
  const row = view.rank === null ? 0 : source.rowOfRank.get(view.rank);
  const { span_begin, span_end } = source.spans.columns;
  const [first, last] = source.spans.spanRows[row];
  const seen = (i) => Math.min(span_end[i], view.t1) - Math.max(span_begin[i], view.t0);
  let longest = first;
  for (let i = first; i < last; i++) if (seen(i) > seen(longest)) longest = i;
  const begin = Math.max(span_begin[longest], view.t0);
  const [top, high] = layout.lanes(row).thread;
  return { x: layout.x(begin + seen(longest) / 2), y: top + high / 2 };
}"""
COUNT_CLICKS = """addEventListener("click", () => {
  sessionStorage.clicks = Number(sessionStorage.clicks ?? 0) + 1;
}, true);"""


def to_the_longest_span(page: Page) -> Locator:
    """By the first finding's link and a click on the timeline; the panel that tells of the span."""
    page.locator("[id^='finding-']").first.get_by_role("link", name="Show on timeline").click()
    page.wait_for_selector(COMPLETE)
    until(page, "view.finding !== undefined && view.t0 !== undefined")
    page.locator("#timeline").click(position=page.evaluate(LONGEST))
    panel = page.locator("#selection")
    expect(panel).to_contain_text("Phase")
    return panel


def to_its_page(page: Page) -> Locator:
    """By the first finding's link to the page of its numbers."""
    page.locator("[id^='finding-']").first.get_by_role("link", name="Data").click()
    return page.locator("#page")


@dataclass(frozen=True)
class Cause:
    """What a reader is to find out, the words that say it there, and the way."""

    rank: int | None
    says: tuple[str, ...]
    way: Callable[[Page], Locator] = to_the_longest_span


CAUSES = {
    "hang": Cause(1, ("between", "Stands in", "wait_for_a_file_that_never_comes")),
    "input-bound": Cause(None, ("input",)),
    "late-backward": Cause(1, ("backward", "Against the others+")),
    "late-rank": Cause(1, ("forward", "Against the others+")),
    "repeated-samples": Cause(None, ("Samples that ranks share", "99.7"), to_its_page),
    "slow-link": Cause(None, ("transfer",)),
}


def test_every_sample_with_a_fault_has_a_cause_to_be_found() -> None:
    assert set(CAUSES) == set(sample_names()) - {"healthy"}


@pytest.mark.parametrize("sample", CAUSES)
def test_from_the_overview_to_the_cause_in_few_clicks(page: Page, sample: str) -> None:
    """What is to be read first is named on the overview; it leads to where the cause shows."""
    report, cause = report_of(sample_folder(sample)), CAUSES[sample]
    page.add_init_script(COUNT_CLICKS)
    with serving(report) as address:
        page.goto(address)
        expect(page.locator("[id^='finding-']").first).to_contain_text(str(report.primary))
        place = cause.way(page)
        for words in cause.says:
            expect(place).to_contain_text(words)
        if cause.rank is not None:
            expect(place).to_contain_text(f"Rank{cause.rank} on node0")
            until(
                page, f"view.rank === '{cause.rank}' && view.finding.startsWith('{report.primary}')"
            )
        assert 0 < int(page.evaluate("sessionStorage.clicks")) <= MOST_CLICKS


def test_ranks_page_leads_to_the_rank(page: Page, late: str) -> None:
    page.goto(late)
    page.goto(f"{late.partition('?')[0]}ranks")
    row = page.locator(".sheet").first.locator("tbody tr").nth(1)
    expect(row).to_contain_text("node0")
    row.get_by_role("link").click()
    page.wait_for_selector(COMPLETE)
    until(page, "view.rank === '1'")


def test_search_for_a_bucket_selects_it_and_the_panel_names_the_last(page: Page, late: str) -> None:
    open_timeline(page, late, "?sync=15")
    box = page.locator("#go-to")
    box.fill("step 12 rank 0 bucket 1")
    box.press("Enter")
    until(page, "/^call-\\d+$/.test(view.sel) && view.rank === '0'")
    expect(page.locator("#selection")).to_contain_text("bucket 1")
    expect(page.locator("#selection")).to_contain_text("Step12")
    expect(page.locator("#selection .arrival").first).to_contain_text("rank 1")


def test_measure_mark_and_table(page: Page, late: str) -> None:
    canvas = open_timeline(page, late, "?sync=15")
    box = box_of(canvas)
    y = box["y"] + 200
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 300, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, y, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    expect(page.locator("#selection")).to_contain_text("Measured")
    page.keyboard.press("m")
    until(page, "view.marks !== undefined")
    page.keyboard.press("t")
    twin = page.locator("#twin")
    expect(twin.locator("tbody tr")).to_have_count(4)
    expect(twin).to_contain_text("worst step")
    page.reload()
    page.wait_for_selector(COMPLETE)
    until(page, "view.marks !== undefined")


def test_a_broken_rank_file_leaves_the_others_to_look_at(page: Page, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(sample_folder("late-rank"), run)
    (run / "rank00003.ddt").write_bytes(b"no rank file")
    with serving(report_of(run)) as address:
        page.goto(address)
        expect(page.locator(".notes")).to_contain_text("rank00003.ddt")
        open_timeline(page, address)
        assert page.evaluate("document.getElementById('timeline').timeline.source.meta.ranks") == [
            0, 1, 2,
        ]  # fmt: skip


def test_behind_the_prefix_of_a_proxy(page: Page) -> None:
    prefix = "/user/x/proxy/8050"
    app = create_app(report_of(sample_folder("late-rank")), token=None, prefix=f"{prefix}/")
    stripped = DispatcherMiddleware(_nothing, {prefix: app.server})
    server = make_server("127.0.0.1", 0, stripped, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        page.goto(f"http://127.0.0.1:{server.port}{prefix}/")
        page.wait_for_selector("#step-areas .main-svg")
        page.locator("[id^='finding-']").first.get_by_role("link", name="Show").click()
        page.wait_for_selector(COMPLETE)
        until(page, "view.finding !== undefined")
        page.locator("nav").get_by_role("link", name="Ranks").click()
        expect(page.locator("h1")).to_have_text("Ranks")
        page.wait_for_selector("#excess-bars .main-svg")
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()


def _nothing(environ: object, start_response: object) -> list[bytes]:
    assert callable(start_response)
    start_response("404 Not Found", [("Content-Type", "text/plain")])
    return [b"outside of the prefix"]


def test_the_view_is_given_away_as_files(page: Page, late: str, tmp_path: Path) -> None:
    canvas = open_timeline(page, late, "?sync=15")
    until(page, "view.t0 !== undefined")
    files = {}
    names = ("Picture (PNG)", "Page that opens offline (HTML)", "Table of the view (CSV)",
             "Trace for Perfetto or Chrome")  # fmt: skip
    for name in names:
        page.get_by_text("Export", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        files[name] = tmp_path / download.value.suggested_filename
        download.value.save_as(files[name])
    picture, offline, table, trace = (files[name] for name in names)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(table.read_text().splitlines()) == 1 + 4
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    box = box_of(canvas)
    page.goto(f"file://{offline}")
    page.wait_for_selector(COMPLETE)
    expect(page.locator("#timeline")).to_have_attribute("data-shows", "spans")
    middle = (box["x"] + GUTTER_PX + 300, box["y"] + 60)
    page.mouse.move(*middle)
    page.mouse.wheel(0, -300)
    page.wait_for_function("() => location.hash.includes('t0=')")
    page.mouse.click(*middle)
    expect(page.locator("#selection")).to_contain_text("Rank")
    page.reload()
    page.wait_for_selector(COMPLETE)
    expect(page.locator("#selection")).to_contain_text("Rank")
