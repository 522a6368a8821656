"""The `dashboard` command as a process: what it prints, whom it lets in, how it ends."""

from __future__ import annotations

import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.browser.conftest import printed_address
from tests.launching import ROOT, ddpdoctor, environment, finish, started

pytestmark = pytest.mark.job

SECONDS = 20.0


def status_of(url: str, host: str | None = None) -> int:
    request = urllib.request.Request(url, headers={"Host": host} if host else {})  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_it_serves_until_interrupted_and_logs_no_token(recorded: Path) -> None:
    command = ddpdoctor("dashboard", str(recorded), "--port", "0", "--no-browser")
    with started(command, recorded, environment(PYTHONPATH=str(ROOT))) as process:
        address = printed_address(process)
        plain, _, query = address.partition("?")
        assert plain.startswith("http://127.0.0.1:")
        assert len(query.removeprefix("token=")) >= 32
        assert status_of(address) == 200
        assert status_of(plain) == 403
        assert status_of(address, host="evil.example") == 400
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=SECONDS) == 0
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
    assert "ssh -L " in out
    assert err == ""


def test_a_folder_of_runs_is_a_list_to_choose_from(recorded: Path) -> None:
    command = ddpdoctor("dashboard", str(recorded.parent), "--port", "0", "--no-browser")
    with started(command, recorded, environment(PYTHONPATH=str(ROOT))) as process:
        address = printed_address(process)
        plain, _, query = address.partition("?")
        assert status_of(address) == 200
        assert status_of(f"{plain}run/{recorded.name}/?{query}") == 200
        assert status_of(f"{plain}run/{recorded.name}/") == 403
        assert status_of(f"{plain}run/nothing/?{query}") == 404


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0", "--no-token"], "--no-token is for 127.0.0.1 only"),  # noqa: S104
        (["--sample", "late-rank"], "not both"),
        (["--port", "99999"], "99999"),
    ],
)
def test_what_it_refuses(recorded: Path, arguments: list[str], sentence: str) -> None:
    command = ddpdoctor("dashboard", str(recorded), "--no-browser", *arguments)
    finished = finish(command, recorded, environment(PYTHONPATH=str(ROOT)), SECONDS)
    assert finished.status == 2
    assert sentence in finished.err


def test_a_taken_port_is_one_clear_sentence(recorded: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ddpdoctor("dashboard", str(recorded), "--no-browser", "--port", port)
        finished = finish(command, recorded, environment(PYTHONPATH=str(ROOT)), SECONDS)
    assert finished.status == 2
    assert f"cannot listen on 127.0.0.1:{port}" in finished.err
    assert len(finished.err.strip().splitlines()) == 1
