"""Checks: how they register, load and run. One module here is one kind of finding.

A check is a generator of findings. Its module docstring opens with `CODE name: the problem in a
sentence` and is the only place where the check is explained: `ddpdoctor explain`, the table
in the README and the dashboard all read it from here.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from importlib.abc import InspectLoader
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ddpdoctor.errors import UnknownCheck
from ddpdoctor.findings import Finding

if TYPE_CHECKING:  # a hang or launch check must load without pandas
    from ddpdoctor.analysis.model import Analysis
    from ddpdoctor.hang.joblog import JobLog
    from ddpdoctor.hang.snapshot import HangSnapshot
    from ddpdoctor.hang.standing import Standing
    from ddpdoctor.launchfacts import LaunchFacts

Subject = TypeVar("Subject")
CheckFunction = Callable[[Subject], Iterator[Finding]]


class NotEnoughData(Exception):
    """Raised by a check that cannot judge; the message is the reason shown to the user."""


def need_steps(run: Analysis, least: int) -> None:
    """Raises NotEnoughData where fewer steps are counted, the warm-up left out."""
    counted = run.steps.counted
    if counted < least:
        steps = "step" if counted == 1 else "steps"
        raise NotEnoughData(f"{counted} {steps} after warm-up; {least} are needed")


class Outcome(StrEnum):
    FINDINGS = "findings"
    CLEAN = "clean"
    SKIPPED = "skipped"
    CRASH = "crash"


@dataclass(frozen=True)
class CheckResult:
    """What one check said: findings, or clean, or the reason for which it could not look."""

    code: str
    name: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Check(Generic[Subject]):
    """A registered check."""

    code: str
    name: str
    explanation: str
    function: CheckFunction[Subject]

    @property
    def problem(self) -> str:
        """The first sentence of the explanation, without code and name."""
        return self.explanation.splitlines()[0].split(": ", 1)[1].rstrip(".")


class Registry(Generic[Subject]):
    """The checks of one subject, by code; `decorator` names them in the source."""

    def __init__(self, decorator: str) -> None:
        self._decorator = decorator
        self._checks: dict[str, Check[Subject]] = {}

    def register(
        self, code: str, name: str
    ) -> Callable[[CheckFunction[Subject]], CheckFunction[Subject]]:
        def add(function: CheckFunction[Subject]) -> CheckFunction[Subject]:
            module = sys.modules[function.__module__]
            explanation = (module.__doc__ or "").strip()
            if not explanation.startswith(f"{code} {name}: "):
                raise TypeError(
                    f"{module.__name__}: its docstring must open with '{code} {name}: '"
                )
            if code in self._checks and self._checks[code].function.__module__ != module.__name__:
                raise TypeError(f"{module.__name__}: code {code} is taken")
            self._checks[code] = Check(code, name, explanation, function)
            return function

        return add

    def of(self, module: str) -> Check[Subject]:
        """The check that this module registers."""
        importlib.import_module(module)
        return next(c for c in self._checks.values() if c.function.__module__ == module)

    def __iter__(self) -> Iterator[Check[Subject]]:
        for module in _modules_with(f"@{self._decorator}("):
            importlib.import_module(module)
        return iter(sorted(self._checks.values(), key=lambda check: check.code))


_trace_checks: Registry[Analysis] = Registry("trace_check")
_hang_checks: Registry[HangSnapshot] = Registry("hang_check")
_dump_checks: Registry[Standing] = Registry("dump_check")
_log_checks: Registry[JobLog] = Registry("log_check")
_launch_checks: Registry[LaunchFacts] = Registry("launch_check")
trace_check = _trace_checks.register
hang_check = _hang_checks.register
dump_check = _dump_checks.register
log_check = _log_checks.register
launch_check = _launch_checks.register


@cache
def _modules_with(decorator: str) -> tuple[str, ...]:
    """Modules here that use this decorator. Only these are imported: hang checks load no pandas."""
    found = []
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        specification = importlib.util.find_spec(module.name)
        loader = specification.loader if specification else None
        if isinstance(loader, InspectLoader) and decorator in (
            loader.get_source(module.name) or ""
        ):
            found.append(module.name)
    return tuple(found)


def trace_checks() -> list[Check[Analysis]]:
    return list(_trace_checks)


def hang_checks() -> list[Check[HangSnapshot]]:
    return list(_hang_checks)


def dump_checks() -> list[Check[Standing]]:
    return list(_dump_checks)


def log_checks() -> list[Check[JobLog]]:
    return list(_log_checks)


def launch_checks() -> list[Check[LaunchFacts]]:
    return list(_launch_checks)


def launch_check_of(module: str) -> Check[LaunchFacts]:
    """The launch check of one module here; no other is loaded."""
    return _launch_checks.of(f"{__name__}.{module}")


def all_checks() -> list[Check[Any]]:
    """The checks of every subject, by code; one that judges several subjects is there once."""
    every: list[Check[Any]] = [
        *_launch_checks, *_trace_checks, *_log_checks, *_dump_checks, *_hang_checks,
    ]  # fmt: skip
    by_code = {check.code: check for check in every}
    return [by_code[code] for code in sorted(by_code)]


def find_check(code_or_name: str) -> Check[Any]:
    """The check with this code or name. Raises UnknownCheck."""
    wanted = code_or_name.casefold()
    for check in all_checks():
        if wanted in (check.code.casefold(), check.name):
            return check
    spellings = [text for check in all_checks() for text in (check.name, check.code.casefold())]
    near = get_close_matches(wanted, spellings, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UnknownCheck(f"no check is called {code_or_name!r}; {hint}`ddpdoctor explain` lists them")


def run_check(check: Check[Subject], subject: Subject) -> CheckResult:
    """Run one check. A check that crashes is a result too, and the others go on."""
    try:
        findings = tuple(check.function(subject))
    except NotEnoughData as reason:
        return CheckResult(check.code, check.name, Outcome.SKIPPED, reason=str(reason))
    except Exception as crash:  # noqa: BLE001  a crashed check must not hide the others
        return CheckResult(check.code, check.name, Outcome.CRASH, reason=_where_it_crashed(crash))
    outcome = Outcome.FINDINGS if findings else Outcome.CLEAN
    return CheckResult(check.code, check.name, outcome, findings)


def run_checks(analysis: Analysis) -> list[CheckResult]:
    """Run all checks on a recorded run, in the order of their codes."""
    return [run_check(check, analysis) for check in trace_checks()]


def _where_it_crashed(crash: Exception) -> str:
    traceback = crash.__traceback__
    while traceback and traceback.tb_next:
        traceback = traceback.tb_next
    if traceback is None:
        return f"{type(crash).__name__}: {crash}"
    code = traceback.tb_frame.f_code
    place = f"{code.co_filename.rsplit('/', 1)[-1]}:{traceback.tb_lineno}"
    return f"{type(crash).__name__} at {place}: {crash}"
