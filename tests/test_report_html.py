"""The report as one HTML file: it shows the same object, and nothing in it acts or is fetched."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ddpdoctor.analysis import analyze
from ddpdoctor.checks import run_checks
from ddpdoctor.report import run_report
from ddpdoctor.report_html import to_html
from ddpdoctor.tracefile import Run
from tests.builders import StepTimes, simulate, with_ranks
from tests.launching import ROOT, ddpdoctor, finish
from tests.link_builders import LINE_OF_METRIC, Link, over_link

HOSTILE = '<script src="http://evil/x.js">alert(1)</script><img src=x onerror=alert(1)>"\'&'


class Page(HTMLParser):
    """Checks that tags close as they opened, and collects what is in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in {"meta"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(run: Run) -> Page:
    analysis = analyze(run)
    return Page(to_html(run_report(analysis, run_checks(analysis))))


def test_it_shows_findings_steps_and_gains() -> None:
    page = page_of(over_link(Link(0.3, 50_000.0, 2), metrics=5, metric_ms=4.0))

    assert "DD201 bandwidth-bound" in page.text
    assert LINE_OF_METRIC in page.text
    assert "rank 1" in page.text
    assert "accumulation" in page.text
    assert page.tags.count("svg") == 2


def test_names_of_a_run_are_text() -> None:
    run = with_ranks(
        simulate(lambda rank, step: StepTimes(forward=40 if rank else 5)),
        lambda trace: replace(trace, info=replace(trace.info, host=HOSTILE)),
    )
    page = page_of(replace(run, info=replace(run.info, run_id=HOSTILE, backend=HOSTILE),
                           problems=(HOSTILE,)))  # fmt: skip

    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not any(name.startswith("on") or name in ("src", "href") for name, _ in page.attributes)
    assert HOSTILE in page.text


def test_nothing_is_fetched() -> None:
    page = page_of(over_link(Link(0.3, 50_000.0, 2)))

    assert not any("http:" in (v or "") or "https:" in (v or "") for _, v in page.attributes)
    assert ("http-equiv", "Content-Security-Policy") in page.attributes


@pytest.mark.parametrize("sample", ["healthy", "hang", "slow-link"])
def test_samples_become_a_page(sample: str, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    run = str(ROOT / "sample_traces" / sample)

    done = finish(ddpdoctor("report", run, "--html", str(out), "--fail-on", "never"), tmp_path)

    assert done.status == 0, done.err
    Page(out.read_text(encoding="utf-8"))


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    run = str(ROOT / "sample_traces" / "healthy")

    done = finish(ddpdoctor("report", run, "--html", str(tmp_path / "no" / "x.html")), tmp_path)

    assert done.status not in (0, 3)
    assert "x.html" in done.err
