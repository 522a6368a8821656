"""The dashboard in a real browser, on a run that was recorded for it."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import WAIT_MS

pytestmark = pytest.mark.job

GUTTER_PX = 116
COMPLETE = "#timeline[data-state='complete']"


def open_overview(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#step-areas .main-svg")


def open_timeline(page: Page, address: str, query: str = "") -> Locator:
    page.goto(address)
    page.goto(f"{address.partition('?')[0]}timeline{query}")
    page.wait_for_selector(COMPLETE)
    return page.locator("#timeline")


def shown(page: Page) -> dict[str, str]:
    """The query string of the address bar."""
    return {name: values[-1] for name, values in parse_qs(urlsplit(page.url).query).items()}


def span_of_view(page: Page) -> float:
    view = shown(page)
    return float(view["t1"]) - float(view["t0"])


def until(page: Page, condition: str) -> None:
    """A condition in JavaScript on `view`, the query string of the address bar."""
    view = "Object.fromEntries(new URLSearchParams(location.search))"
    page.wait_for_function(f"() => {{ const view = {view}; return {condition} }}")


def box_of(canvas: Locator) -> dict[str, float]:
    box = canvas.bounding_box()
    assert box is not None
    return {"x": box["x"], "y": box["y"], "width": box["width"], "height": box["height"]}


def hover_until_told(page: Page, box: dict[str, float]) -> None:
    """Moves over the rows until a span is under the pointer."""
    tooltip = page.locator("#tooltip")
    for y in range(60, int(box["height"]) - 5, 15):
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + y)
        if tooltip.is_visible() and "rank" in (tooltip.text_content() or ""):
            return
    raise AssertionError("no span told its rank")


def test_overview_shows_the_fault_and_links_to_it(page: Page, address: str) -> None:
    open_overview(page, address)
    assert "token" not in page.url
    finding = page.locator("#finding-DD101-0")
    expect(finding).to_contain_text("Rank 1")
    expect(finding).to_contain_text("arrives last")
    expect(finding).to_contain_text("Fix.")
    finding.get_by_role("link", name="Show on timeline").click()
    page.wait_for_selector(COMPLETE)
    until(page, "view.finding === 'DD101.0' && view.rank === '1' && view.t0 !== undefined")
    expect(page.locator("[data-finding='DD101.0']")).to_have_attribute("aria-current", "true")
    page.go_back()
    page.wait_for_selector("#finding-DD101-0")


def test_nothing_scrolls_sideways(page: Page, address: str) -> None:
    open_overview(page, address)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    open_timeline(page, address)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_wheel_zooms_at_the_pointer(page: Page, address: str) -> None:
    canvas = open_timeline(page, address)
    until(page, "view.t0 !== undefined")
    before, box = shown(page), box_of(canvas)
    share = 0.25
    page.mouse.move(
        box["x"] + GUTTER_PX + share * (box["width"] - GUTTER_PX), box["y"] + box["height"] / 2
    )
    for _ in range(4):
        page.mouse.wheel(0, -200)
    until(page, f"view.t1 - view.t0 < {0.5 * span_of_view(page)}")

    def at(view: dict[str, str]) -> float:
        return float(view["t0"]) + share * (float(view["t1"]) - float(view["t0"]))

    page.wait_for_timeout(400)  # longer than the address bar lags behind
    after = shown(page)
    assert at(after) == pytest.approx(
        at(before), abs=0.02 * (float(before["t1"]) - float(before["t0"]))
    )


def test_drag_moves_and_reload_keeps_the_view(page: Page, address: str) -> None:
    canvas = open_timeline(page, address, "?sync=20")
    until(page, "view.t0 !== undefined")
    t0, span, box = float(shown(page)["t0"]), span_of_view(page), box_of(canvas)
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 600, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, middle, steps=4)
    page.mouse.move(box["x"] + 400, middle, steps=4)
    page.mouse.up()
    expected = 200 / (box["width"] - GUTTER_PX) * span
    until(page, f"Math.abs(view.t0 - {t0} - {expected}) < {0.05 * expected}")
    kept = shown(page)
    page.reload()
    page.wait_for_selector(COMPLETE)
    assert shown(page) == kept


def test_hover_tells_and_click_selects_against_the_median(page: Page, address: str) -> None:
    canvas = open_timeline(page, address, "?sync=20")
    box = box_of(canvas)
    x, y = _somewhere_on("backward", page, box)
    expect(page.locator("#tooltip")).to_contain_text("rank 1")
    page.mouse.click(x, y)
    until(page, "/^span-\\d+$/.test(view.sel)")
    panel = page.locator("#selection")
    expect(panel).to_contain_text("backward")
    expect(panel).to_contain_text("Median of the others")
    selected = shown(page)["sel"]
    page.reload()
    page.wait_for_selector(COMPLETE)
    expect(page.locator("#selection")).to_contain_text("Median of the others")
    assert shown(page)["sel"] == selected


def _somewhere_on(name: str, page: Page, box: dict[str, float]) -> tuple[float, float]:
    """Moves along the row of rank 1 until the tooltip names this phase."""
    y = box["y"] + 42 + _row_height(box) * 1.25
    for x in range(GUTTER_PX + 20, int(box["width"]) - 10, 12):
        page.mouse.move(box["x"] + x, y)
        tip = page.locator("#tooltip")
        if tip.is_visible() and name in (tip.text_content() or ""):
            return box["x"] + x, y
    raise AssertionError(f"no {name} in the row")


def _row_height(box: dict[str, float]) -> float:
    return min(180.0, (box["height"] - 46) // 2)


def test_a_bucket_names_who_arrived_last_and_back_returns(page: Page, address: str) -> None:
    canvas = open_timeline(page, address, "?sync=20")
    box = box_of(canvas)
    until(page, "view.t0 !== undefined")
    before = page.url
    y = box["y"] + 42 + _row_height(box) * 0.8  # the collectives of rank 0
    for x in range(GUTTER_PX + 20, int(box["width"]) - 10, 12):
        page.mouse.move(box["x"] + x, y)
        if "bucket" in (page.locator("#tooltip").text_content() or ""):
            page.mouse.click(box["x"] + x, y)
            break
    until(page, "/^call-\\d+$/.test(view.sel)")
    panel = page.locator("#selection")
    expect(panel).to_contain_text("all-reduce")
    expect(panel).to_contain_text("rank 1")
    first = panel.locator(".arrival").first
    first.click()
    until(page, "/^call-\\d+$/.test(view.sel)")
    page.go_back()
    page.go_back()
    page.wait_for_function("before => location.href === before", arg=before)
    expect(panel).to_contain_text("Click a span")


def test_keys(page: Page, address: str) -> None:
    canvas = open_timeline(page, address, "?sync=20")
    until(page, "view.t0 !== undefined")
    canvas.focus()
    span, t0 = span_of_view(page), float(shown(page)["t0"])
    page.keyboard.press("ArrowRight")
    until(page, f"view.t0 > {t0 + span / 10}")
    page.keyboard.press("+")
    until(page, f"view.t1 - view.t0 < {0.7 * span}")
    page.keyboard.press("-")
    until(page, f"Math.abs(view.t1 - view.t0 - {span}) < {0.02 * span}")
    page.keyboard.press("0")
    until(page, f"view.t1 - view.t0 > {5 * span}")
    page.keyboard.press("n")
    until(page, "view.finding === 'DD101.0' && view.rank === '1'")
    page.keyboard.press("Escape")
    until(page, "view.finding === undefined")


def test_rows_grow_and_the_address_keeps_it(page: Page, address: str) -> None:
    canvas = open_timeline(page, address, "?sync=20")
    canvas.focus()
    page.keyboard.press("e")
    until(page, "view.tall > 1.3")
    page.keyboard.press("q")
    until(page, "view.tall === undefined")


def test_go_to_a_step_and_rank(page: Page, address: str) -> None:
    open_timeline(page, address)
    until(page, "view.t0 !== undefined")
    span = span_of_view(page)
    box = page.locator("#go-to")
    box.fill("step 20 rank 1")
    box.press("Enter")
    until(page, f"view.rank === '1' && view.t1 - view.t0 < {span / 3}")
    box.fill("somewhere")
    box.press("Enter")
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#go-to-says")).to_contain_text("Nothing of that name")
    box.press("Backspace")
    expect(page.locator("#go-to-says")).to_be_hidden()


def test_a_parameter_leads_to_the_bucket_that_holds_it(page: Page, address: str) -> None:
    open_timeline(page, address)
    box = page.locator("#go-to")
    known = page.locator("#go-to-known option")
    assert "second.weight" in known.evaluate_all("all => all.map((each) => each.value)")
    box.fill("step 20 rank 1 second.weight")
    box.press("Enter")
    until(page, "/^call-\\d+$/.test(view.sel) && view.rank === '1'")
    panel = page.locator("#selection")
    expect(panel).to_contain_text("Step20")
    expect(panel.locator(".parameters li").filter(has_text="second.weight")).to_have_count(1)
    page.locator("nav").get_by_role("link", name="Buckets").click()
    expect(page.locator("#page")).to_contain_text("Parameters of the buckets")
    expect(page.locator(".names li").filter(has_text="second.weight")).to_have_count(1)


def test_minimap_chooses_a_stretch(page: Page, address: str) -> None:
    open_timeline(page, address)
    page.get_by_role("button", name="Show the whole run").click()
    until(page, "view.t0 <= 0")
    whole, box = span_of_view(page), box_of(page.locator("#minimap"))
    page.mouse.move(box["x"] + 400, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 20, steps=3)
    page.mouse.up()
    expected = 100 / (box["width"] - GUTTER_PX)
    until(page, f"view.t1 - view.t0 < {1.3 * expected * whole}")
    assert span_of_view(page) > 0.7 * expected * whole


def test_theme_is_switched_and_kept(page: Page, address: str) -> None:
    open_overview(page, address)
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.get_by_role("button", name="Theme").click()
    page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    page.reload()
    page.wait_for_selector("#step-areas .main-svg")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_cell_of_the_map_opens_its_place(page: Page, address: str) -> None:
    open_overview(page, address)
    box = box_of(page.locator("#excess-map .nsewdrag"))
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.75)
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.75)
    page.wait_for_selector(COMPLETE)
    until(page, "view.rank === '1' && view.t0 !== undefined")


def test_without_the_token_nothing_is_shown(browser: Browser, address: str) -> None:
    page = browser.new_page()
    try:
        answer = page.goto(f"{address.partition('?')[0]}timeline", timeout=WAIT_MS)
        assert answer is not None
        assert answer.status == 403
        assert "rank" not in (page.text_content("body") or "")
    finally:
        page.close()
