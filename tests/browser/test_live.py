"""A run that trains is followed as it grows; one that hangs shows the verdict on top."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import printed_address
from tests.browser.test_dashboard import COMPLETE
from tests.launching import ROOT, TRAIN, ddpdoctor, environment, started, torchrun

pytestmark = pytest.mark.job

WAIT_MS = 45_000
FOLLOWED = "() => Number(document.getElementById('timeline').dataset.grown) > {}"


@contextmanager
def training(folder: Path, *arguments: str) -> Iterator[Path]:
    """The folder of a run, once its first steps are on disk."""
    env = environment(PYTHONPATH=str(ROOT), DDPDOCTOR_REPORT="0")
    with started(torchrun(TRAIN, "--wrap", *arguments), folder, env):
        limit = time.monotonic() + WAIT_MS / 1000
        while time.monotonic() < limit:
            runs = list((folder / "ddpdoctor_runs").glob("*/attempt-0/rank00001.ddt"))
            if runs and runs[0].stat().st_size > 0:
                yield runs[0].parent
                return
            time.sleep(0.2)
        raise AssertionError("no rank wrote a record")


@contextmanager
def dashboard(run: Path) -> Iterator[str]:
    command = ddpdoctor("dashboard", str(run), "--port", "0", "--no-browser")
    with started(command, run, environment(PYTHONPATH=str(ROOT))) as process:
        yield printed_address(process)


def open_timeline(page: Page, address: str) -> None:
    page.goto(address)
    page.goto(f"{address.partition('?')[0]}timeline")
    page.wait_for_selector(COMPLETE, timeout=WAIT_MS)


def test_a_run_that_trains_is_followed(page: Page, tmp_path: Path) -> None:
    page.set_default_timeout(WAIT_MS)
    with training(tmp_path, "--steps", "2000", "--load-ms", "20") as run:
        time.sleep(2)  # some steps: a run without any cannot be drawn
        with dashboard(run) as address:
            open_timeline(page, address)
            expect(page.locator("#course")).to_have_text("live", timeout=WAIT_MS)
            page.wait_for_function(FOLLOWED.format(0))
            seen = page.evaluate("Number(document.getElementById('timeline').dataset.grown)")
            page.wait_for_function(FOLLOWED.format(seen + 500))
            page.wait_for_selector(COMPLETE)


def test_a_run_that_hangs_shows_the_verdict_on_top(page: Page, tmp_path: Path) -> None:
    page.set_default_timeout(WAIT_MS)
    with training(tmp_path, "--steps", "100", "--fault", "hang") as run:
        time.sleep(2)
        with dashboard(run) as address:
            open_timeline(page, address)
            expect(page.locator("#course")).to_contain_text("stands still", timeout=WAIT_MS)
            expect(page.locator("#verdict")).to_contain_text("rank 1", timeout=WAIT_MS)
