"""Named spans and collections are drawn above the phases, and named as text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import serving
from tests.dashboards.shown import marked_run, report_on

pytestmark = pytest.mark.job

COMPLETE = "#timeline[data-state='complete']"


@pytest.fixture(scope="module")
def marked() -> Iterator[str]:
    with serving(report_on(marked_run())) as address:
        yield address


def test_the_tooltip_names_what_covers_the_moment(page: Page, marked: str) -> None:
    page.goto(marked)
    page.goto(f"{marked.partition('?')[0]}timeline?t0=0&t1=100")
    page.wait_for_selector(COMPLETE)
    canvas = page.locator("#timeline")
    expect(canvas).to_have_attribute("data-shows", "spans")
    box = canvas.bounding_box()
    assert box is not None
    at = box["x"] + 116 + 0.25 * (box["width"] - 116)  # within the collection
    page.mouse.move(at, box["y"] + 60)
    tooltip = page.locator("#tooltip")
    expect(tooltip).to_contain_text("in <b>epoch</b>")
    expect(tooltip).to_contain_text("in garbage collection")
    expect(tooltip).not_to_contain_text("in loss")
    assert tooltip.locator("b").count() == 0
