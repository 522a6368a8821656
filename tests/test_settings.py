"""Where a setting comes from, and that a value without sense costs one warning and no more."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ddpdoctor import settings as module
from ddpdoctor.runfolders import runs_folder
from ddpdoctor.schedule import Steps
from ddpdoctor.settings import Settings, settings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, no variables, and nothing warned of yet."""
    monkeypatch.chdir(tmp_path)
    for name in ("DISABLE", "REPORT", "DIR", "STEPS", "DETAIL_EVERY", "BUDGET_MB"):
        monkeypatch.delenv(f"DDPDOCTOR_{name}", raising=False)
    monkeypatch.setattr(module, "_warned", set())
    return tmp_path


def test_an_argument_is_stronger_than_the_environment_and_that_than_pyproject(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings() == Settings()

    table = 'steps = "5:"\ndetail-every = 2\nbudget-mb = 3\ndisable = false\nreport = false\n'
    (folder / "pyproject.toml").write_text(f"[tool.ddpdoctor]\n{table}")
    monkeypatch.setenv("DDPDOCTOR_DETAIL_EVERY", "20")
    monkeypatch.setenv("DDPDOCTOR_BUDGET_MB", "30")

    chosen = settings(budget_mb=300, steps=None)

    assert chosen == Settings(
        report=False, steps=Steps(5, None), detail_every=20, budget_mb=300, dir="ddpdoctor_runs"
    )


def test_the_folder_of_the_runs_is_a_setting_for_reading_too(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.ddpdoctor]\ndir = "elsewhere/runs"\n')

    assert runs_folder() == Path("elsewhere/runs")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("steps", "100:200", Steps(100, 200)),
        ("steps", " 100 : ", Steps(100, None)),
        ("steps", ":200", Steps(1, 200)),
        ("disable", "1", True),
        ("disable", "no", False),
        ("detail_every", "7", 7),
        ("budget_mb", "8192", 8192),
    ],
)
def test_what_can_be_said(
    name: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"DDPDOCTOR_{name.upper()}", text)

    assert getattr(settings(), name) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("steps", "100"),
        ("steps", ":"),
        ("steps", "200:100"),
        ("steps", "0:5"),
        ("steps", "-1:5"),
        ("steps", "1:" + "9" * 400),
        ("disable", "perhaps"),
        ("detail_every", "0"),
        ("detail_every", "1.5"),
        ("detail_every", "٣"),
        ("budget_mb", "64MB"),
        ("budget_mb", "8193"),
        ("budget_mb", "9" * 5000),
    ],
)
def test_a_value_without_sense_is_one_warning_that_names_it(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(f"DDPDOCTOR_{name.upper()}", text)

    with caplog.at_level(logging.WARNING):
        assert settings() == Settings()
        assert settings() == Settings()

    (warning,) = caplog.messages
    assert f"DDPDOCTOR_{name.upper()} is " in warning
    assert len(warning) < 250


@pytest.mark.parametrize(
    "content",
    [
        b"[tool.ddpdoctor",
        b"tool = 3 # ddpdoctor",
        b"[tool]\nddpdoctor = 5",
        b"[tool.ddpdoctor]\nname = '\xff'",
        b"# ddpdoctor\nx = " + b"[" * 100_000,
        b'[tool.ddpdoctor]\ndetail-evry = 3\nsteps = "1:5"',
        b"[tool.ddpdoctor]\nbudget-mb = true",
        b"[tool.ddpdoctor]\nsteps = [1, 2]",
    ],
)
def test_a_table_that_cannot_be_used_is_one_warning(
    content: bytes, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "pyproject.toml").write_bytes(content)

    with caplog.at_level(logging.WARNING):
        chosen = settings()

    (warning,) = caplog.messages
    assert "pyproject.toml" in warning
    assert chosen == Settings(steps=Steps(1, 5) if b"1:5" in content else None)


def test_another_projects_table_is_no_concern_of_ours(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "pyproject.toml").write_text("[tool.other]\nsteps = 'x'\n")
    (folder / "unrelated").mkdir()

    assert settings() == Settings()
    assert caplog.messages == []
