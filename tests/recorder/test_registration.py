"""Who may tell `diagnose` which process is which rank."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ddpdoctor.hang.registrations import read_registrations
from ddpdoctor.recorder.registration import register, registration_folder, start_time_ticks


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_registration_names_this_process(tmp_path: Path) -> None:
    path = register(3, 8, tmp_path / "run", tmp_path / "rank00003.ddt")

    facts = json.loads(path.read_text())
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert facts["pid"] == os.getpid()
    assert facts["start_time_ticks"] == start_time_ticks(os.getpid())
    assert (facts["rank"], facts["world_size"]) == (3, 8)
    (read,) = read_registrations(path.parent)
    assert read.record == str(tmp_path / "rank00003.ddt")


def test_a_folder_open_to_others_is_refused(runtime_folder: Path) -> None:
    (runtime_folder / "ddpdoctor").mkdir()
    (runtime_folder / "ddpdoctor").chmod(0o755)

    with pytest.raises(PermissionError, match="not a private folder"):
        registration_folder()


def test_a_link_in_its_place_is_refused(runtime_folder: Path) -> None:
    (runtime_folder / "elsewhere").mkdir(mode=0o700)
    (runtime_folder / "ddpdoctor").symlink_to(runtime_folder / "elsewhere")

    with pytest.raises(PermissionError):
        registration_folder()
