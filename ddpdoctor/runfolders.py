"""Where runs are kept, and which folder of a run holds the rank files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ddpdoctor.errors import DdpDoctorError, NotARun
from ddpdoctor.launchrecord import has_notes
from ddpdoctor.localrecords import where_they_lie
from ddpdoctor.settings import settings


def runs_folder() -> Path:
    """Where runs are kept: by the settings, or `ddpdoctor_runs` in the working folder."""
    return Path(settings().dir)


def list_runs(folder: Path | None = None) -> list[Path]:
    """The runs in a folder, oldest first, with launches of which nothing was recorded."""
    folder = folder or runs_folder()
    try:
        found = [(_changed_ns(path), path.name, path) for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise NotARun(f"{folder}: cannot be read ({error.strerror})") from error
    return [path for changed_ns, _, path in sorted(found) if changed_ns >= 0]


def _changed_ns(path: Path) -> int:
    """When a run was last written to; -1 for what is no run, or cannot be read."""
    try:
        is_one = path.is_dir() and (attempts(path) or has_notes(path))
        return path.stat().st_mtime_ns if is_one else -1
    except OSError:
        return -1


def launch_alone(path: Path | None) -> Path | None:
    """The run, by default the newest, if its ranks left notes of how they joined and no record.

    Raises NotARun where there is no run at all.
    """
    if path is None:
        runs = list_runs()
        path = runs[-1] if runs else newest_run()
    path = _by_id(path)
    try:
        return path if path.is_dir() and has_notes(path) and not is_run(path) else None
    except OSError:
        return None


def newest_run() -> Path:
    """The newest that was recorded."""
    runs = [run for run in list_runs() if attempts(run)]
    if not runs:
        raise NotARun(
            f"no recorded run in {runs_folder().absolute()}: put `model = "
            f"ddpdoctor.wrap(model)` into the "
            "training script, or start it by `ddpdoctor run`; or name a run folder"
        )
    return runs[-1]


def attempts(run: Path) -> list[Path]:
    """The folders of a run's attempts, the newest last."""
    numbered = [
        (int(match[1]), path)
        for path in run.iterdir()
        if (match := re.fullmatch(r"attempt-(\d{1,9})", path.name)) and path.is_dir()
    ]
    return [path for _, path in sorted(numbered)]


def attempt_folder(path: Path) -> Path:
    """The folder that holds the rank files: this one, or its newest attempt.

    A bare name may be a run's id, as reports print it.
    """
    path = _by_id(path)
    try:
        if not path.exists():
            raise NotARun(f"{path}: there is no such folder")
        if not path.is_dir():
            raise NotARun(f"{path}: is a file; name the run folder that holds it")
        if list(rank_files(path)):
            return path
        numbered = attempts(path)
        if numbered and list(rank_files(numbered[-1])):
            return numbered[-1]
    except OSError as error:
        raise NotARun(f"{path}: cannot be read ({error.strerror})") from error
    if not numbered and has_notes(path):
        raise NotARun(
            f"{path}: holds notes of a launch of which no rank recorded a model; "
            "`ddpdoctor report` judges it"
        )
    away = where_they_lie(numbered[-1] if numbered else path)
    raise NotARun(
        f"{path}: holds no rank file (rank*.ddt)" + (away or ", so it is not a recorded run")
    )


def _by_id(path: Path) -> Path:
    if path.exists() or path.name != str(path):
        return path
    return runs_folder() / path if (runs_folder() / path).exists() else path


def folders_around(attempt: Path) -> tuple[Path, ...]:
    """Where something may be kept beside a run: its attempt, the run, and all runs."""
    if not re.fullmatch(r"attempt-\d{1,9}", attempt.name):
        return (attempt,)
    absolute = attempt.absolute()
    return (attempt, *absolute.parents[:2])


def rank_files(folder: Path) -> Iterator[Path]:
    """In the order of the ranks."""
    return iter(sorted(folder.glob("rank*.ddt")))


def is_run(path: Path) -> bool:
    """Whether `load_run` would find rank files there."""
    try:
        attempt_folder(path)
    except DdpDoctorError:
        return False
    return True
