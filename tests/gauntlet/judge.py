"""Holds what was said of a training against what its case expects."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.gauntlet.cases import Case

SEVERITIES = ("info", "warning", "error")
LAUNCH = "DD4"  # these are said before there is a run, in the output of the job
# the heading of a finding in text, such as `DD101 late-rank  error, certain, 2.2 s lost`
_HEADING = re.compile(r"^\W*(DD\d{3}) [a-z0-9-]+ +(info|warning|error), ", re.MULTILINE)
# the warning that rank 0 gives while it trains, `ddpdoctor: DD406 not-wrapped: rank 0 of 2 trains`
_WARNED = re.compile(r"^ddpdoctor: (DD\d{3}) [a-z0-9-]+: ", re.MULTILINE)


@dataclass(frozen=True)
class Said:
    """A finding. `culprits` None: it was read from text, which names them in words only."""

    code: str
    severity: str
    culprits: tuple[int, ...] | None
    fix: str


@dataclass(frozen=True)
class Judged:
    """`why` is empty where it is right."""

    right: bool
    why: str = ""


def said_by_report(text: str) -> list[Said] | None:
    """The findings of `report --json`, the first to read first; None: there is no report."""
    try:
        report: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError:
        return None
    said = [
        Said(result["code"], found["severity"], tuple(found["culprits"]), found["fix"])
        for result in report["results"]
        for found in result["findings"]
    ]
    return sorted(said, key=lambda one: one.code != report["primary"])


def said_in_output(text: str) -> list[Said]:
    """The findings whose headings stand in a job's output; any line there may be their fix."""
    headings = [(code, severity) for code, severity in _HEADING.findall(text)]
    headings += [(code, "warning") for code in _WARNED.findall(text)]
    return [Said(code, severity, None, text) for code, severity in headings]


def loud(said: Sequence[Said], at_least: str) -> list[Said]:
    least = SEVERITIES.index(at_least)
    return [one for one in said if SEVERITIES.index(one.severity) >= least]


def judge(case: Case, said: Sequence[Said]) -> Judged:
    heard = loud(said, case.at_least)
    if case.code is None:
        codes = " ".join(one.code for one in heard)
        return Judged(not heard, codes and f"false alarm: {codes}")
    wanted = [one for one in heard if one.code in (case.code, *case.or_codes)]
    if not wanted:
        return Judged(False, f"{case.code} is not said")
    problems = [_problem(case, one) for one in wanted]
    return Judged("" in problems, "" if "" in problems else problems[0])


def _problem(case: Case, said: Said) -> str:
    if not _same_culprits(case, said.culprits):
        return f"{said.code} blames {list(said.culprits or ())}, not {list(case.culprits or ())}"
    if not re.search(case.fix_word, said.fix, re.IGNORECASE):
        return f"{said.code}: the fix does not speak of {case.fix_word}"
    return ""


def _same_culprits(case: Case, culprits: tuple[int, ...] | None) -> bool:
    if case.culprits is None or culprits is None:
        return True
    if case.culprits == ():
        return set(culprits) in (set(), set(range(case.ranks)))
    return set(culprits) == set(case.culprits)
