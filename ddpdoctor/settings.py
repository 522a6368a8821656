"""What the user chose: an argument, else the environment, else pyproject.toml, else the default.

A value that makes no sense costs one warning that names it, and the default is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ddpdoctor.notices import warn
from ddpdoctor.regular import read_up_to
from ddpdoctor.schedule import MOST_EVERY, Steps

PYPROJECT: Final = "pyproject.toml"  # of the working folder, table [tool.ddpdoctor]
MOST_BUDGET_MB: Final = 8192  # readers refuse regions beyond 8 GiB
_MOST_BYTES: Final = 1024 * 1024
_SHOWN: Final = 60  # characters of a value that cannot be used
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True)
class Settings:
    """`steps` None is every step; of `detail_every` N, each N-th step is kept in detail."""

    disable: bool = False
    report: bool = True
    dir: str = "ddpdoctor_runs"
    steps: Steps | None = None
    detail_every: int = 1
    budget_mb: int = 64


def settings(**arguments: object) -> Settings:
    """All settings; arguments that are None were not given."""
    unknown = arguments.keys() - _PARSERS.keys()
    if unknown:
        raise TypeError(f"ddpdoctor has no settings {sorted(unknown)}")
    table = _table()
    chosen: dict[str, Any] = {}
    for name, parse in _PARSERS.items():
        for source, value in _given(name, arguments, table):
            try:
                chosen[name] = parse(value)
            except ValueError as error:
                _warn_once(f"{source} is {repr(value)[:_SHOWN]} and not {error}")
            break
    return Settings(**chosen)


def _given(
    name: str, arguments: dict[str, object], table: dict[str, object]
) -> Iterator[tuple[str, object]]:
    """Where the setting has a value, the strongest first."""
    variable, key = f"DDPDOCTOR_{name.upper()}", name.replace("_", "-")
    if arguments.get(name) is not None:
        yield f"the argument {name}", arguments[name]
    if os.environ.get(variable):
        yield variable, os.environ[variable]
    if key in table:
        yield f"{key} in {PYPROJECT}", table[key]


def _table() -> dict[str, object]:
    """`[tool.ddpdoctor]`; empty where there is none."""
    try:
        raw = read_up_to(Path(PYPROJECT), _MOST_BYTES)
    except OSError:
        return {}
    if b"ddpdoctor" not in raw:
        return {}
    import tomllib

    try:
        table = tomllib.loads(raw.decode()).get("tool", {}).get("ddpdoctor", {})
        keys = set(table)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        _warn_once(f"{PYPROJECT} cannot be read ({str(error)[:_SHOWN]})")
        return {}
    for key in sorted(keys - {name.replace("_", "-") for name in _PARSERS}):
        _warn_once(f"{key[:_SHOWN]!r} in {PYPROJECT} is no setting of ddpdoctor")
    return dict(table) if isinstance(table, dict) else {}


_warned: set[str] = set()


def _warn_once(problem: str) -> None:
    if problem not in _warned:
        _warned.add(problem)
        warn("%s; it is ignored", problem)


def _yes_or_no(value: object) -> bool:
    text = str(value).strip().lower()
    if text not in _YES | _NO:
        raise ValueError("1 or 0")
    return text in _YES


def _text(value: object) -> str:
    if not isinstance(value, (str, os.PathLike)) or "\0" in (text := os.fspath(value)):
        raise ValueError("the name of a folder")
    return str(text)


def _steps(value: object) -> Steps:
    return value if isinstance(value, Steps) else Steps.parse(str(value))


def _whole(most: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        text = str(value).strip()
        if not (text.isascii() and text.isdigit() and len(text) < 16 and 1 <= int(text) <= most):
            raise ValueError(f"a whole number from 1 to {most}")
        return int(text)

    return parse


_PARSERS: Final[dict[str, Callable[[object], object]]] = {
    "disable": _yes_or_no,
    "report": _yes_or_no,
    "dir": _text,
    "steps": _steps,
    "detail_every": _whole(MOST_EVERY),
    "budget_mb": _whole(MOST_BUDGET_MB),
}
