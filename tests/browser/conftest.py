"""One real run of two ranks, its dashboard in a child process, and pages of a real Chromium."""

from __future__ import annotations

import selectors
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ddpdoctor.dashboards import create_app
from ddpdoctor.dashboards.server import Address, start
from ddpdoctor.report import Report
from tests.launching import ROOT, TRAIN, ddpdoctor, environment, finish, started, torchrun

START_SECONDS = 30.0
WAIT_MS = 15_000
CHROMIUM_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@dataclass
class Seen:
    """What a page asked for and what went wrong on it."""

    hosts: set[str | None] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 1 is 40 ms late in each backward."""
    folder = tmp_path_factory.mktemp("recorded")
    command = torchrun(TRAIN, "--wrap", "--fault", "backward", "--late-ms", "40", "--steps", "40")
    env = environment(PYTHONPATH=str(ROOT), DDPDOCTOR_REPORT="0")
    finished = finish(command, folder, env)
    assert finished.status == 0, finished.err
    (run,) = (folder / "ddpdoctor_runs").iterdir()
    return run


@pytest.fixture(scope="session")
def address(recorded: Path) -> Iterator[str]:
    """The address that the command printed."""
    command = ddpdoctor("dashboard", str(recorded), "--port", "0", "--no-browser")
    with started(command, recorded, environment(PYTHONPATH=str(ROOT))) as process:
        yield printed_address(process)


def printed_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    limit = time.monotonic() + START_SECONDS
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < limit and process.poll() is None:
            if waiting.select(timeout=0.5):
                return process.stdout.readline().split()[-1]
    raise AssertionError(f"no address within {START_SECONDS} s, exit status {process.poll()}")


@contextmanager
def serving(report: Report) -> Iterator[str]:
    """The address of a dashboard of this report, served by a thread."""
    token = "t" * 32
    server = start(create_app(report, token=token), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Address("127.0.0.1", server.port, token).url
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium, "the browser tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=CHROMIUM_FLAGS, timeout=WAIT_MS * 2
        )
        yield browser
        browser.close()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def page(browser: Browser, seen: Seen) -> Iterator[Page]:
    """Any error on the page, and any request that leaves this machine, fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).hostname))
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on(
        "console",
        lambda message: seen.errors.append(message.text) if message.type == "error" else None,
    )
    yield page
    context.close()
    assert seen.errors == []
    assert seen.hosts <= {"127.0.0.1", None}
