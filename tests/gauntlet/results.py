"""The outcomes of the gauntlet, kept between its parts, and the table made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gauntlet.cases import CASES, LEFT_OUT
from tests.launching import ROOT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KEPT = ROOT / ".stamps" / "gauntlet.jsonl"
TABLE = ROOT / "tests" / "gauntlet" / "RESULTS.md"

_HEAD = """# What the gauntlet showed

Written by `make gauntlet`. Each training is started by `ddpdoctor run` (plain) or calls
`ddpdoctor.wrap` (wrapped); *found* are the codes at warning or above in `ddpdoctor report`, the
one to read first in bold. Expectations are in `cases.py`. A row is right if the code is there, the
ranks that it blames are the expected ones and its fix says what the report's did; a healthy
training is right if nothing is found and it ends with status 0.
"""


@dataclass(frozen=True)
class Outcome:
    """One training in one mode. `found`: codes at warning or above, the one to read first first."""

    case: str
    report: str
    mode: str
    expected: str
    found: tuple[str, ...]
    right: bool
    why: str
    seconds: float
    load: float
    commit: str


def keep(outcome: DataclassInstance, path: Path = KEPT) -> None:
    """One more line of what the parts found."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")


def kept(path: Path = KEPT, places: Iterable[tuple[str, str]] | None = None) -> list[Outcome]:
    """The newest outcome of each case and mode that still exists, in the order of the cases."""
    if not path.exists():
        return []
    newest: dict[tuple[str, str], Outcome] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        outcome = Outcome(**fields | {"found": tuple(fields["found"])})
        newest[outcome.case, outcome.mode] = outcome
    if places is None:
        places = ((case.name, mode) for case in CASES for mode in case.modes)
    return [newest[place] for place in places if place in newest]


def write(outcomes: Sequence[Outcome], path: Path = TABLE) -> None:
    everything = sum(len(case.modes) for case in CASES)
    write_table(_HEAD, totals_of(outcomes, everything), outcomes, LEFT_OUT, path)


def write_table(
    head: str,
    totals: Iterable[str],
    outcomes: Sequence[Outcome],
    left_out: Mapping[str, str],
    path: Path,
) -> None:
    """Head, totals, a row for each outcome, and the reports without a case."""
    lines = [head, *totals, *_rows(outcomes, left_out)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rows(outcomes: Sequence[Outcome], left_out: Mapping[str, str]) -> Iterable[str]:
    yield "\n| case | report | mode | expected | found | right | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for one in outcomes:
        first, *others = one.found or ("nothing",)
        found = " ".join([f"**{first}**" if one.found else first, *others])
        right = "yes" if one.right else "**no**"
        yield (
            f"| {one.case} | {one.report} | {one.mode} | {one.expected} | {found} | {right} "
            f"| {one.seconds:.0f} |"
        )
    wrong = [one for one in outcomes if not one.right]
    if wrong:
        yield "\nWrong:\n"
    yield from (f"- {one.case}, {one.mode}: {one.why}" for one in wrong)
    yield "\nReports without a case:\n"
    yield from (f"- {report}: {reason}" for report, reason in left_out.items())


def totals_of(outcomes: Sequence[Outcome], everything: int) -> Iterable[str]:
    """In lines: how many are right, of how many, with what commit and load."""
    faults = [one for one in outcomes if one.report]
    healthy = [one for one in outcomes if not one.report]
    yield f"- faults told right: {sum(one.right for one in faults)} of {len(faults)}"
    silent = sum(one.right for one in healthy)
    yield f"- healthy trainings without a false alarm: {silent} of {len(healthy)}"
    yield f"- trainings run: {len(outcomes)} of {everything}"
    if outcomes:
        loads = [one.load for one in outcomes]
        commits = ", ".join(dict.fromkeys(one.commit for one in outcomes))
        yield f"- commit: {commits}"
        yield (
            f"- load of the machine when a training began: {loads[0]:.1f} at the first, "
            f"{loads[-1]:.1f} at the last, {max(loads):.1f} at most"
        )
