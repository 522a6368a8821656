"""The wheel in an empty environment without torch: everything but recording works."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.launching import ROOT, environment, finish, started

pytestmark = [pytest.mark.job, pytest.mark.long, pytest.mark.timeout(420)]

INSTALL_SECONDS = 300


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the environment's programs."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    built = finish(build, folder, seconds=INSTALL_SECONDS)
    assert built.status == 0, built.err
    (wheel,) = folder.glob("*.whl")
    made = finish([sys.executable, "-m", "venv", str(folder / "venv")], folder)
    assert made.status == 0, made.err
    programs = folder / "venv" / "bin"
    install = [str(programs / "pip"), "install", "--quiet", str(wheel)]
    # a ddpdoctor on the path would pass for an installed one
    done = finish(install, folder, environment(PYTHONPATH=""), INSTALL_SECONDS)
    assert done.status == 0, done.err
    return programs


def test_torch_is_not_there_and_wrap_says_so(installed: Path, tmp_path: Path) -> None:
    done = finish([str(installed / "python"), "-c", "import ddpdoctor; ddpdoctor.wrap"], tmp_path)

    assert done.status == 1
    assert "recording needs torch" in done.err


def test_report_explain_and_diagnose_work(installed: Path, tmp_path: Path) -> None:
    program = str(installed / "ddpdoctor")
    find = "from ddpdoctor.samples import sample_folder; print(sample_folder('late-rank'))"
    sample = finish([str(installed / "python"), "-c", find], tmp_path).out.strip()

    report = finish([program, "report", sample, "--json"], tmp_path)
    explain = finish([program, "explain", "late-rank"], tmp_path)
    diagnose = finish([program, "diagnose", "--pid", "1"], tmp_path)

    assert report.status == 1, report.err
    assert json.loads(report.out)["primary"] == "DD101"
    assert explain.out.startswith("DD101 late-rank")
    assert diagnose.status == 2
    assert len(diagnose.err.splitlines()) == 1


def test_the_dashboard_shows_a_sample(installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "ddpdoctor"), "dashboard", "--sample", "late-rank", "--port", "0"]

    with started([*command, "--no-browser"], tmp_path, environment(PYTHONUNBUFFERED="1")) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = line.rpartition(" ")[2].strip()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=20) as page:
            assert page.status == 200
            assert b"ddpdoctor" in page.read()
