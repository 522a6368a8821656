"""Pages for all readers: axe in both themes, windows at 200 %, less motion, the keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from ddpdoctor.samples import sample_folder
from tests.browser.conftest import serving
from tests.browser.test_dashboard import COMPLETE, open_timeline, until
from tests.browser.test_pages import report_of

pytestmark = pytest.mark.job

PAGES = {
    "": "#step-areas .main-svg", "timeline": COMPLETE, "ranks": "#excess-bars .main-svg",
    "buckets": "#bucket-bars .main-svg", "data-loading": "#input-map .main-svg",
    "stacks": ".panel", "checks": ".check",
}  # fmt: skip
TOLERATED = ("minor", "moderate")
WIDE_PX, HALF_PX = 1280, 640  # at 200 % a window has half the pixels
# what reaches over the edges of the window, but for what scrolls by itself
OUTSIDE = """wide => [...document.querySelectorAll("main *, header *")].filter((each) => {
  const { right, left, width } = each.getBoundingClientRect();
  return width > 1 && (right > wide + 1 || left < -1)
    && !each.closest(".scrolls, #twin, .unseen, .skip, svg, .js-plotly-plot");
}).map((each) => each.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module", params=["late-rank", "hang"])
def faulty(request: pytest.FixtureRequest) -> Iterator[str]:
    with serving(report_of(sample_folder(request.param))) as address:
        yield address


def open_page(page: Page, address: str, path: str) -> None:
    page.goto(f"{address.partition('?')[0]}{path}")
    page.wait_for_selector(PAGES[path])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(page: Page, faulty: str, theme: str) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page.goto(faulty)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    for path in PAGES:
        open_page(page, faulty, path)
        page.evaluate(
            "for (const box of document.querySelectorAll('#page details')) box.open = true"
        )
        found = Axe().run(page).response["violations"]
        serious = [
            (path, each["id"], [node["html"] for node in each["nodes"]])
            for each in found
            if each["impact"] not in TOLERATED
        ]
        assert serious == []


@pytest.mark.parametrize("wide", [WIDE_PX, HALF_PX])
def test_nothing_scrolls_sideways_nor_is_cut_off(page: Page, faulty: str, wide: int) -> None:
    page.set_viewport_size({"width": wide, "height": 900 * wide // WIDE_PX})
    page.goto(faulty)
    for path in PAGES:
        open_page(page, faulty, path)
        assert page.evaluate("document.documentElement.scrollWidth") <= wide
        assert (path, page.evaluate(OUTSIDE, wide)) == (path, [])


def test_a_jump_is_not_animated_where_less_motion_is_wished(page: Page, faulty: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    open_timeline(page, faulty)
    page.locator("#timeline").focus()
    frames = page.evaluate(
        """async () => {
          const { timeline } = document.getElementById("timeline");
          const shown = () => `${timeline.view.t0} ${timeline.view.t1}`;
          const seen = new Set([shown()]);
          timeline.finding(1);
          for (let i = 0; i < 20; i++) {
            await new Promise(requestAnimationFrame);
            seen.add(shown());
          }
          return seen.size;
        }"""
    )
    assert frames == 2


def test_from_the_overview_to_the_culprit_by_the_keyboard(page: Page, faulty: str) -> None:
    """The skip link, then the first finding's own; the table of the view is read from there."""
    page.goto(faulty)
    page.wait_for_selector("#step-areas .main-svg")
    page.locator("[id^='finding-']").first.get_by_role("link", name="Show on timeline").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(COMPLETE)
    until(page, "view.finding !== undefined && view.rank === '1'")
    page.locator("#timeline").focus()
    page.keyboard.press("t")
    expect(page.locator("#twin caption")).to_contain_text("Milliseconds of each rank")
