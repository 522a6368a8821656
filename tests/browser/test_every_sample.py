"""Each packaged sample in a real browser: from the overview to its place, and about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from ddpdoctor import analyze, load_run, run_checks
from ddpdoctor.report import Report, run_report
from ddpdoctor.samples import sample_folder, sample_names
from tests.browser.conftest import serving
from tests.browser.test_dashboard import (
    COMPLETE,
    box_of,
    hover_until_told,
    open_overview,
    open_timeline,
    shown,
    span_of_view,
    until,
)

pytestmark = pytest.mark.job


@pytest.fixture(scope="module", params=sample_names())
def sample(request: pytest.FixtureRequest) -> Report:
    analysis = analyze(load_run(sample_folder(request.param)))
    return run_report(analysis, run_checks(analysis))


@pytest.fixture(scope="module")
def sample_address(sample: Report) -> Iterator[str]:
    with serving(sample) as address:
        yield address


def test_overview_has_its_findings_and_each_opens_its_place(
    page: Page, sample: Report, sample_address: str
) -> None:
    open_overview(page, sample_address)
    findings = page.locator("[id^='finding-']")
    expect(findings).to_have_count(len(sample.findings))
    for number, (result, finding) in enumerate(sample.findings):
        card = findings.nth(number)
        expect(card).to_contain_text(result.code)
        expect(card).to_contain_text(finding.message[1:])  # it opens with a capital
        card.get_by_role("link", name="Show on timeline").click()
        page.wait_for_selector(COMPLETE)
        until(page, f"view.finding.startsWith('{result.code}') && view.t0 !== undefined")
        page.go_back()
        page.wait_for_selector("#step-areas .main-svg")


def test_timeline_zooms_pans_tells_and_keeps_its_view(page: Page, sample_address: str) -> None:
    canvas = open_timeline(page, sample_address, "?sync=20")
    until(page, "view.t0 !== undefined")
    box, before = box_of(canvas), span_of_view(page)
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(*middle)
    page.mouse.wheel(0, -200)
    until(page, f"view.t1 - view.t0 < {0.95 * before}")
    t0 = float(shown(page)["t0"])
    page.mouse.down()
    page.mouse.move(middle[0] - 100, middle[1], steps=4)
    page.mouse.up()
    until(page, f"view.t0 > {t0}")
    hover_until_told(page, box)
    kept = shown(page)
    page.reload()
    page.wait_for_selector(COMPLETE)
    assert shown(page) == kept
