"""A run of 64 ranks: zoomed out it shows what stands out in each step, zoomed in single spans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import serving
from tests.browser.test_dashboard import box_of, hover_until_told
from tests.dashboards.shown import late_run, report_on

pytestmark = pytest.mark.job

COMPLETE = "#timeline[data-state='complete']"


@pytest.fixture(scope="module")
def many_ranks() -> Iterator[str]:
    with serving(report_on(late_run(64, 300))) as address:
        yield address


def test_steps_then_spans(page: Page, many_ranks: str) -> None:
    page.goto(many_ranks)
    page.goto(f"{many_ranks.partition('?')[0]}timeline")
    page.wait_for_selector(COMPLETE)
    canvas = page.locator("#timeline")
    expect(canvas).to_have_attribute("data-shows", "steps")
    expect(page.locator("#timeline-state")).to_contain_text("longer the rank took")
    canvas.focus()
    for _ in range(9):
        page.keyboard.press("+")
    expect(canvas).to_have_attribute("data-shows", "spans")
    page.wait_for_selector(COMPLETE)
    for _ in range(3):
        page.keyboard.press("e")
    page.wait_for_selector(COMPLETE)
    hover_until_told(page, box_of(canvas))
    expect(page.locator("#tooltip")).to_contain_text("step")


def test_few_bytes_are_fetched_for_a_close_view(page: Page, many_ranks: str) -> None:
    sizes: list[int] = []
    page.on(
        "response",
        lambda answer: (
            sizes.append(int(answer.headers.get("content-length", "0")))
            if "/data/window" in answer.url
            else None
        ),
    )
    page.goto(many_ranks)
    page.goto(f"{many_ranks.partition('?')[0]}timeline?sync=150")
    page.wait_for_selector(COMPLETE)
    assert len(sizes) == 1
    assert sizes[0] < 300_000


def test_collectives_are_fetched_once_rows_have_room_for_them(page: Page, many_ranks: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(many_ranks)
    page.goto(f"{many_ranks.partition('?')[0]}timeline?sync=150")
    page.wait_for_selector(COMPLETE)
    windows = [url for url in asked if "/data/window" in url]
    assert ["calls=0" in url for url in windows] == [True]
    page.locator("#timeline").focus()
    with page.expect_request(lambda request: "calls=1" in request.url):
        for _ in range(4):
            page.keyboard.press("e")
    page.wait_for_selector(COMPLETE)
