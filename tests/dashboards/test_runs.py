"""A folder of runs: the list, a dashboard under each id, and what is no run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from werkzeug.test import Client

from ddpdoctor.dashboards.runs import RunsApp
from ddpdoctor.samples import sample_folder

TOKEN = "a-token-of-the-test"  # noqa: S105


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, sample in (("first", "late-rank"), ("second<b>", "healthy")):
        shutil.copytree(sample_folder(sample), tmp_path / name / "attempt-0")
    broken = tmp_path / "broken" / "attempt-0"
    broken.mkdir(parents=True)
    (broken / "rank00000.ddt").write_bytes(b"no rank file")
    return tmp_path


def entered(folder: Path) -> Client:
    client = Client(RunsApp(folder, TOKEN))
    assert client.get(f"/?token={TOKEN}").status_code == 302
    return client


def test_the_list_names_every_run_and_leads_to_it(folder: Path) -> None:
    page = entered(folder).get("/").text
    assert 'href="run/first/"' in page
    assert "4 of 4" in page
    assert "unreadable" in page
    assert "second<b>" not in page


def test_each_run_has_its_own_addresses(folder: Path) -> None:
    client = entered(folder)
    page = client.get("/run/first/").text
    assert 'src="/run/first/assets/timeline/main.js"' in page
    assert client.get("/run/first/data/meta").json["ranks"] == [0, 1, 2, 3]
    assert client.get("/run/first/assets/style.css", buffered=True).status_code == 200


@pytest.mark.parametrize("name", ["..", "nothing", "%2e%2e", "attempt-0"])
def test_only_ids_of_the_list_are_runs(folder: Path, name: str) -> None:
    assert entered(folder).get(f"/run/{name}/").status_code == 404


def test_a_run_that_cannot_be_read_is_a_sentence(folder: Path) -> None:
    answer = entered(folder).get("/run/broken/")
    assert answer.status_code == 422
    assert "is not a rank file" in answer.text or "preamble" in answer.text


@pytest.mark.parametrize("path", ["/", "/run/first/", "/run/first/data/meta", "/run/broken/"])
def test_everything_needs_the_token_and_a_trusted_host(folder: Path, path: str) -> None:
    client = Client(RunsApp(folder, TOKEN))
    assert client.get(path).status_code == 403
    assert client.get(path, headers={"Host": "evil.example"}).status_code == 400
